"""Which machines have which devices: configuration formats read into one model."""
