"""An encoder-decoder like T5: relative position bias, cross attention, one shared embedding."""
