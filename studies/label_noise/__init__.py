"""Compare losses by the clean-test AUC of models that were trained on flipped labels."""
