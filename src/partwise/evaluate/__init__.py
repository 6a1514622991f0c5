"""Evaluation of a trained model, with reference scores."""
