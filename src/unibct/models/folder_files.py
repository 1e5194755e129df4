"""The names of the files of a model folder, readable without torch."""

DESCRIPTION_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
CLASSIFIER_FILE = "classifier.safetensors"
ADAPTER_FILE = "adapter.safetensors"
