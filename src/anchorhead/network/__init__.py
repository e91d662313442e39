"""What a result is made of at run time: affine maps, attention, and the walker that proves there is no more."""
