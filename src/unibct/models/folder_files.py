"""The names of the files of a model folder, readable without torch."""

DESCRIPTION_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
CLASSIFIER_FILE = "classifier.safetensors"
MAP_FILE = "adapter.safetensors"  # the word for a map in files and fingerprints of models
