"""Uses of a trained model: loading, predictions, features, conversion, export, figures."""
