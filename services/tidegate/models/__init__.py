"""Policy networks that actor and learner share: tensors in, tensors out, no file IO."""
