"""Policy networks that actor and learner share: tensors in, tensors out; only a pretrained model's folder is read."""
