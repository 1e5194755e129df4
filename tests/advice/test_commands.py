import shlex
from pathlib import Path

from unibct.advice.commands import upgrade_commands
from unibct.advice.request import AdviceRequest


def test_names_with_spaces_stay_one_word():
    request = AdviceRequest(
        Path("my old"),
        "my photos",
        images=Path("new list.txt"),
        gallery="the shop",
        method="unibct",
        settings=("mean=[0.1, 0.2, 0.3]",),
    )
    commands = upgrade_commands(request, ["--recipe", "my recipes/it's.toml"])
    train = shlex.split(commands["training"][0])
    assert train == [
        "unibct", "train", "my photos", "--images", "new list.txt", "--old", "my old",
        "--method", "unibct", "--recipe", "my recipes/it's.toml",
        "--set", "mean=[0.1, 0.2, 0.3]", "--out", "models/new",
    ]  # fmt: skip
    evaluate = shlex.split(commands["training"][1])
    assert evaluate[3:] == ["--gallery", "my old", "--query", "models/new"]
    assert shlex.split(commands["backfill"][0])[3] == "the shop"
    assert "--new models/free --old 'my old'" in commands["mapping"][1]


def test_the_default_method_and_an_unknown_gallery_are_left_out():
    request = AdviceRequest(Path("old"), "photos", gallery="200")
    commands = upgrade_commands(request, ["--recipe", "glyphs"], larger="resnet-small-wide")
    assert commands["training"][0] == (
        "unibct train photos --old old --recipe glyphs --set architecture=resnet-small-wide "
        "--out models/new"
    )
    assert "GALLERY-IMAGES" in commands["backfill"][0]


def test_a_gallery_whose_name_begins_with_a_digit_is_no_number():
    for gallery, want in (("2021-gallery", "2021-gallery"), ("1_000,000", "GALLERY-IMAGES")):
        request = AdviceRequest(Path("old"), "photos", gallery=gallery)
        assert shlex.split(upgrade_commands(request, [])["backfill"][0])[3] == want


def test_the_free_model_has_no_old_weights_to_start_from():
    request = AdviceRequest(Path("old"), "photos", settings=("warm_start=true", "lr=0.1"))
    commands = upgrade_commands(request, [])
    assert "--set warm_start=true --set lr=0.1" in commands["training"][0]
    assert commands["mapping"][0] == "unibct train photos --set lr=0.1 --out models/free"
    in_file = AdviceRequest(Path("old"), "photos")
    commands = upgrade_commands(in_file, ["--recipe", "my.toml"], warm_start=True)
    free = "unibct train photos --recipe my.toml --no-warm-start --out models/free"
    assert commands["mapping"][0] == free
    assert "--no-warm-start" not in commands["training"][0]
