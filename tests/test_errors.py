from unibct.errors import UserError, first_line


def test_the_first_line_of_a_message_or_the_name_of_the_error():
    assert first_line(RuntimeError("\n no such operator\nand much more")) == "no such operator"
    assert first_line(MemoryError()) == "MemoryError"
    assert isinstance(UserError("x"), ValueError)
