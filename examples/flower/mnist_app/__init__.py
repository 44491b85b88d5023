"""A Flower app that trains on MNIST and sends sketches."""
