"""A document encoder with sliding windows and global tokens: masked words, answers and kinds."""
