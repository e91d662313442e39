"""What a user holds: affine maps and attention, literal and fast, and the walker that proves there is no more."""
