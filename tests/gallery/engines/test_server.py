import pytest

from unibct.errors import UserError
from unibct.gallery.engines import Place
from unibct.gallery.engines.server import (
    kind_name,
    lock_number,
    name_stem,
    refuse_secret,
    registry_name,
    secret_of_url,
)

PLACES = ["g", "g_kinds", "G", "x" * 80, "x" * 81]


def names_of(name, tmp_path):
    place = Place(tmp_path, name)
    return {registry_name(place), kind_name(place, "a" * 32), kind_name(place, "b" * 32)}


def test_names_of_different_galleries_and_kinds_differ(tmp_path):
    names = [names_of(name, tmp_path) for name in PLACES]
    assert len(set.union(*names)) == 3 * len(PLACES)
    assert len({lock_number(Place(tmp_path, name)) for name in PLACES}) == len(PLACES)


def test_names_fit_into_postgresql_with_a_word_to_spare(tmp_path):
    for name in PLACES:
        stem = name_stem(Place(tmp_path, name))
        for one in names_of(name, tmp_path):
            assert len(one) + len("_hnsw_new") <= 63
            assert one.startswith(stem)


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        ("http://host:19530", None),
        ("http://me:hidden@host:19530/db", "me:hidden"),
        ("http://hidden@host", "hidden"),
        ("unix:/tmp/a@b", None),
    ],
)
def test_secrets_in_addresses_are_refused_and_not_shown(address, secret):
    assert secret_of_url(address) == secret
    if secret is None:
        refuse_secret(address, secret, "set X")
        return
    with pytest.raises(UserError, match="contains a password; leave it out and set X") as caught:
        refuse_secret(address, secret, "set X")
    assert "hidden" not in str(caught.value)
