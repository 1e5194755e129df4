"""Small meta files of IJB-B and IJB-C, for tests."""

from unibct.evaluation.protocols import ijb_files as meta
from unibct.evaluation.protocols.ijb_faces import TEMPLATE

POINTS = " ".join(f"{v:.3f}" for v in TEMPLATE.ravel())


FILES = {
    "face_tid_mid.txt": "1.jpg 1 69544\n2.jpg 1 69544\n3.jpg 7 12\n3.jpg 90 12\n5.jpg 4 3\n",
    "name_5pts_score.txt": "".join(
        f"{name}.jpg {POINTS} 0.{number}\n" for number, name in enumerate("12335", start=5)
    ),
    "template_pair_label.txt": "1 7 0\n4 90 1\n1 90 0\n",
    "1N_gallery_1.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME\n1,10,img/1.jpg\n1,10,img/2.jpg\n",
    "1N_gallery_2.csv": '\ufeff"tid", "sid"\r\n"4", "20"\r\n\r\n',
    "1N_probe_mixed.csv": 'a,b,c\n90,20,"x, y"\n7,10,\n90,20,z\n',
}


def write_meta(root, name="ijbc", **changes):
    (root / "meta").mkdir(exist_ok=True)
    for file, text in (FILES | changes).items():
        for number, part in enumerate(meta.GALLERIES[name], start=1):
            file = file.replace(f"gallery_{number}", f"gallery_{part}")
        path = root / "meta" / f"{name}_{file}"
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(text.encode())
    return root
