"""What a trained model is used for: loading, predictions, features, conversion, export, figures."""
