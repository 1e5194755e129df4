import pytest

from tests.gallery.toys import NEW, NEWEST, OLD, toy_certificate, toy_images, written
from tests.notes import Notes, show
from unibct.embedders import Opener
from unibct.errors import UserError
from unibct.evaluation.certificate import Certificate
from unibct.gallery.gallery import Gallery


@pytest.fixture
def fingerprints(toy_gallery):
    old = toy_gallery.folder.state.standing.searching
    return old, toy_gallery.folder.opener.open(NEW).fingerprint


@pytest.fixture
def certified(fingerprints, tmp_path):
    """Writes a certificate of the new model for the rows of the old one."""
    return lambda **changes: written(toy_certificate(*fingerprints, **changes), tmp_path)


@pytest.fixture
def holding(tmp_path):
    """Makes a gallery of the old model that holds certificates."""

    def made(*certificates):
        gallery = Gallery.create(tmp_path / "H", OLD, certificates=certificates)
        gallery.add(toy_images())
        return gallery

    return made


def with_damaged_certificate(gallery):
    (held,) = (gallery.folder.path / "certificates").iterdir()
    damage(held)
    return Gallery(gallery.folder.path)


@pytest.mark.parametrize(
    ("verdict", "advice"),
    [
        ("not compatible", r"Train it with the old model \(--old\)"),
        ("within noise", "Test it on more classes"),
        ("old model too weak", "Embed the rows again, or in a trial train a better old model"),
    ],
)
def test_a_certificate_that_does_not_say_compatible_is_no_reason(
    toy_gallery, certified, verdict, advice
):
    with pytest.raises(UserError, match=rf"says: {verdict}; .* {advice}, or insist \(force\)"):
        toy_gallery.upgrade(NEW, [certified(verdict=verdict)])
    assert len(toy_gallery.folder.state.steps) == 2


def test_a_certificate_on_seen_classes_is_no_reason(toy_gallery, fingerprints, certified):
    classes = {"basis": "overridden", "seen": 3, "tested": 3, "unknown": None}
    certificate = certified(classes=classes)
    message = r"compatible of 9 .*some or all of them classes .*other classes"
    with pytest.raises(UserError, match=message):
        toy_gallery.upgrade(NEW, [certificate])
    result = toy_gallery.upgrade(NEW, [certificate], force=True)
    assert result.forced == result.doubtful == (fingerprints[0],)
    assert toy_gallery.status().as_json()["doubtful"] == [fingerprints[0]]


def test_a_certificate_that_does_not_know_its_classes_is_shown(
    toy_gallery, fingerprints, certified
):
    classes = {"basis": "unknown", "seen": None, "tested": 3, "unknown": "arrays do not say"}
    certificate = certified(classes=classes)
    for dry_run in (True, False):
        result = toy_gallery.upgrade(NEW, [certificate], dry_run=dry_run)
        assert (result.forced, result.doubtful) == ((), (fingerprints[0],))
    assert toy_gallery.status().doubtful == (fingerprints[0],)
    toy_gallery.rollback()
    assert toy_gallery.status().doubtful == ()


def test_force_is_recorded_and_shown_until_it_is_rolled_back(toy_gallery, fingerprints):
    result = toy_gallery.upgrade(NEW, force=True)
    assert result.forced == (fingerprints[0],)
    assert toy_gallery.status().as_json()["forced"] == [fingerprints[0]]
    assert toy_gallery.search(toy_images(per_class=1))[0].as_json()["forced"] is True
    toy_gallery.rollback()
    assert toy_gallery.status().as_json()["forced"] == []
    assert "forced" not in toy_gallery.search(toy_images(per_class=1))[0].as_json()


def test_a_certificate_that_the_gallery_holds_counts(certified, fingerprints, holding, tmp_path):
    gallery = holding(certified())
    assert gallery.upgrade(NEW).forced == ()
    assert gallery.search(toy_images(per_class=1), k=1, far=0.1)[0].hits
    gallery.rollback()
    assert gallery.upgrade(NEW).forced == ()
    newest = Opener().open(NEWEST).fingerprint
    with pytest.raises(UserError, match=r"no certificate says that .*newest_model may search"):
        gallery.upgrade(NEWEST, [written(toy_certificate(fingerprints[1], newest), tmp_path)])


def test_a_held_certificate_must_say_compatible_and_a_given_one_comes_first(certified, holding):
    weak, good = certified(verdict="within noise"), certified()
    gallery = holding(weak)
    with pytest.raises(UserError, match="the certificate says: within noise"):
        gallery.upgrade(NEW)
    assert gallery.upgrade(NEW, [good]).forced == ()
    gallery.rollback()
    with pytest.raises(UserError, match="the certificate says: within noise"):
        gallery.upgrade(NEW, [weak])


def test_of_two_certificates_that_contradict_each_other_the_no_counts(certified, holding):
    good, bad = certified(), certified(verdict="not compatible")
    gallery = holding(good, bad)
    for given in ([good, bad], [bad, good], []):
        with pytest.raises(UserError, match="the certificate says: not compatible"):
            gallery.upgrade(NEW, given)
    assert gallery.upgrade(NEW, [good]).forced == ()
    with pytest.raises(UserError, match="the certificate says: not compatible"):
        gallery.upgrade(NEW, [good, bad])


def test_a_certificate_that_was_changed_is_refused_given_or_held(toy_gallery, certified, holding):
    certificate = certified()
    gallery = holding(certificate)
    held = next((gallery.folder.path / "certificates").iterdir())
    for file in (certificate, held):
        file.write_text(file.read_text().replace('"toys"', '"tays"'))
    with pytest.raises(UserError, match="was changed"):
        toy_gallery.upgrade(NEW, [certificate])
    with pytest.raises(UserError, match="was changed"):
        gallery.upgrade(NEW)


def damage(path):
    path.write_text(path.read_text()[:100])


def test_a_damaged_certificate_stops_no_upgrade_that_it_does_not_concern(
    certified, holding, tmp_path
):
    other = written(toy_certificate("0" * 32, "1" * 32), tmp_path)
    show(notes := Notes())
    gallery = holding(other, certified())
    held = tmp_path / "H" / "certificates" / f"{Certificate.read(other).digest}.json"
    damage(held)
    assert gallery.upgrade(NEW).forced == ()
    assert [str(held) in text for text in notes.texts] == [True], "named once"
    assert len(gallery.verify()) == 1
    assert gallery.search(toy_images(per_class=1), far=0.01)


def test_an_upgrade_that_needs_a_damaged_certificate_names_it(certified, holding):
    certificate = certified()
    gallery = holding(certificate)
    (held,) = (gallery.folder.path / "certificates").iterdir()
    damage(held)
    with pytest.raises(UserError, match=rf"no certificate says .*1 that .*{held.name} cannot"):
        gallery.upgrade(NEW)
    assert gallery.upgrade(NEW, [certificate]).forced == (), "given again, it is kept again"
    assert gallery.verify() == []


@pytest.mark.parametrize("changes", [{}, {"date": "2027-01-02T03:04:05Z"}])
def test_a_damaged_certificate_of_the_searching_model_is_recorded_again(
    upgraded, tmp_path, changes
):
    upgraded.add(toy_images(per_class=1, first=30))
    query = toy_images(per_class=1)
    hits = [answer.hits for answer in upgraded.search(query)]
    certificate = toy_certificate(*upgraded.folder.state.kinds, **changes)
    gallery = with_damaged_certificate(upgraded)
    with pytest.raises(UserError, match=r"record the certificate again: .*--model .*new_model"):
        gallery.search(query)
    assert gallery.upgrade(NEW, [written(certificate, tmp_path)]).certified
    assert [answer.hits for answer in gallery.search(query)] == hits


def test_a_damaged_certificate_stops_no_rollback(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    gallery = with_damaged_certificate(upgraded)
    assert gallery.rollback().unsearchable == 6
    assert gallery.folder.state.searching.name.endswith("old_model")


def test_a_damaged_certificate_stops_no_search_that_has_one_kind_of_rows(upgraded):
    query = toy_images(per_class=1)
    hits = [answer.hits for answer in upgraded.search(query)]
    gallery = with_damaged_certificate(upgraded)
    assert [answer.hits for answer in gallery.search(query)] == hits
    with pytest.raises(UserError, match="record the certificate again"):
        gallery.search(query, far=0.01)


def test_a_certificate_whose_file_has_gone_is_kept_again(upgraded, tmp_path):
    certificate = written(toy_certificate(*upgraded.folder.state.kinds), tmp_path)
    upgraded.search(toy_images(per_class=1), far=0.01)  # it has been read
    (held,) = (upgraded.folder.path / "certificates").iterdir()
    held.unlink()
    upgraded.upgrade(NEW, [certificate])
    assert upgraded.verify() == []


def test_a_dry_run_changes_nothing(toy_gallery, fingerprints, certified):
    certificate = certified()
    files = sorted(toy_gallery.folder.path.rglob("*"))
    result = toy_gallery.upgrade(NEW, [certificate], dry_run=True)
    assert (result.old_rows, result.dry_run) == (48, True)
    assert result.savings.rows == 48
    assert result.savings.rate > 0
    assert sorted(toy_gallery.folder.path.rglob("*")) == files
    assert toy_gallery.folder.state.standing.searching == fingerprints[0]


def test_a_forced_model_is_certified_later(toy_gallery, fingerprints, certified):
    old, _ = fingerprints
    weak, good = certified(verdict="within noise"), certified()
    toy_gallery.upgrade(NEW, force=True)
    queries = toy_images(per_class=1)
    with pytest.raises(UserError, match=r"far\) needs one; .*upgrade .*G --model .*new_model --c"):
        toy_gallery.search(queries, far=0.1)
    with pytest.raises(UserError, match="the certificate says: within noise"):
        toy_gallery.upgrade(NEW, [weak])
    assert toy_gallery.upgrade(NEW, [weak], force=True).forced == (old,)
    assert toy_gallery.search(queries, far=0.1)[0].forced
    assert toy_gallery.upgrade(NEW, [good], dry_run=True).certified
    assert toy_gallery.status().forced == [old]
    result = toy_gallery.upgrade(NEW, [good])
    assert (result.certified, result.forced, result.old_rows) == (True, (), 48)
    assert toy_gallery.status().forced == []
    assert not toy_gallery.search(queries, far=0.1)[0].forced
    with pytest.raises(UserError, match=r"searches this gallery already, and .* nothing new"):
        toy_gallery.upgrade(NEW, [good])
    assert toy_gallery.verify() == []
    toy_gallery.rollback()
    assert toy_gallery.folder.state.standing.searching == old


def test_what_was_certified_later_stays_so_when_a_backfill_is_undone(toy_gallery, certified):
    toy_gallery.upgrade(NEW, force=True)
    toy_gallery.backfill(toy_images(), share=0.5)
    toy_gallery.upgrade(NEW, [certified()])
    toy_gallery.abort()
    assert list(toy_gallery.status().live.values()) == [48, 0]
    assert toy_gallery.status().forced == []


def test_a_gallery_without_a_certificate_gets_one_later(
    toy_gallery, fingerprints, certified, tmp_path
):
    with pytest.raises(UserError, match="already"):
        toy_gallery.upgrade(OLD)
    stranger = written(toy_certificate(fingerprints[1], "0" * 32), tmp_path)
    with pytest.raises(UserError, match="nothing new"):
        toy_gallery.upgrade(OLD, [stranger])
    assert toy_gallery.upgrade(OLD, [certified()]).certified
    assert toy_gallery.search(toy_images(per_class=1), far=0.1)[0].hits
    assert toy_gallery.upgrade(NEW).forced == ()


def test_a_certificate_about_a_model_says_nothing_about_rows_of_a_map(
    upgraded, forward_map, tmp_path
):
    upgraded.backfill(map_folder=forward_map, share=0.5)
    old, new, mapped = upgraded.folder.state.kinds
    newest = upgraded.folder.opener.open(NEWEST).fingerprint
    certificates = [written(toy_certificate(kind, newest), tmp_path) for kind in (old, new)]
    with pytest.raises(UserError, match=r"24 rows were made by the map .*: embed them from"):
        upgraded.upgrade(NEWEST, certificates)
    assert upgraded.upgrade(NEWEST, certificates, force=True).forced == (mapped,)
    upgraded.rollback()
    upgraded.backfill(toy_images())
    assert upgraded.upgrade(NEWEST, certificates).forced == ()


def test_an_upgrade_back_to_a_model_whose_rows_a_backfill_has_replaced_is_refused(upgraded):
    upgraded.backfill(toy_images())
    with pytest.raises(UserError, match=r"\(step 4\) has replaced rows of .*old_model, such as"):
        upgraded.upgrade(OLD, force=True)
    upgraded.finish()
    upgraded.upgrade(OLD, force=True)
    upgraded.backfill(toy_images())
    upgraded.rollback()
    assert list(upgraded.status().live.values()) == [0, 48]
    assert upgraded.verify() == []


def test_an_empty_gallery_needs_no_certificate(tmp_path):
    gallery = Gallery.create(tmp_path / "G", OLD)
    assert gallery.upgrade(NEW).old_rows == 0
    assert gallery.add(toy_images()).added == 48
    assert list(gallery.status().live.values()) == [0, 48]


def test_another_dimension_without_a_projection_is_refused(toy_gallery, fingerprints, tmp_path):
    wide = "python:tests.gallery.test_upgrade:wide_model"
    certificate = toy_certificate(fingerprints[0], toy_gallery.folder.opener.open(wide).fingerprint)
    with pytest.raises(UserError, match="no projection into dimension 12"):
        toy_gallery.upgrade(wide, [written(certificate, tmp_path)])


def wide_model(pixels):
    return pixels.reshape(len(pixels), -1)[:, :20] / 255 + 0.1


wide_model.unibct_input = {"size": 6, "channels": 1}


def test_an_upgrade_opens_the_new_model_once(toy_gallery, certified, monkeypatch):
    opened = []
    open_reference = Opener.open
    monkeypatch.setattr(
        Opener, "open", lambda self, given: opened.append(given) or open_reference(self, given)
    )
    toy_gallery.upgrade(NEW, [certified()])
    toy_gallery.search(toy_images(per_class=1))
    assert opened.count(NEW) == 1
