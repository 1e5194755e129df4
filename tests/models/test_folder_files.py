from unibct.models.folder_files import (
    CLASSIFIER_FILE,
    DESCRIPTION_FILE,
    MAP_FILE,
    WEIGHTS_FILE,
)
from unibct.models.weights_file import weight_files


def test_the_names_stay_those_of_the_folders_that_users_have(tmp_path):
    names = (DESCRIPTION_FILE, WEIGHTS_FILE, CLASSIFIER_FILE, MAP_FILE)
    assert names == (
        "model.json",
        "model.safetensors",
        "classifier.safetensors",
        "adapter.safetensors",
    )


def test_the_weights_of_a_model_folder_are_those_of_its_network(tmp_path):
    for name in (DESCRIPTION_FILE, WEIGHTS_FILE, CLASSIFIER_FILE):
        (tmp_path / name).touch()
    assert weight_files(tmp_path) == [tmp_path / WEIGHTS_FILE]
