"""What a model is worth: its loss on text it was not trained on."""
