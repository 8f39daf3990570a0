"""Policy networks shared by actor and learner: tensors in, tensors out; the only IO is reading a model's folder."""
