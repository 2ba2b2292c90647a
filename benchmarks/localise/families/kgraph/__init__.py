"""Link prediction on a knowledge graph."""
