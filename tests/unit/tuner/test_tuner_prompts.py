"""The shipped sample, and files that users give."""

import argparse
import json
import random
import string
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from tabletune_tuner.outcome import FailedError
from tabletune_tuner.prompts import LEAST_ORDERED_UNITS, MAX_FILE_BYTES, MAX_PROMPT_CHARACTERS, judge, read_prompts
from tabletune_tuner.texts import JUDGED_CHARACTERS, split_units


def test_ships_160_different_prompts_of_three_kinds_in_turn() -> None:
    prompts = read_prompts(None, 160)
    assert (len(prompts.texts), len(set(prompts.texts)), prompts.source, prompts.warnings) == (160, 160, "shipped sample", ())
    first = read_prompts(None, 24).texts
    assert first == prompts.texts[:24]
    assert "Python" in first[1]  # chat, code, mathematics
    assert "train leaves" in first[2]


def test_the_digest_hangs_on_the_texts() -> None:
    assert read_prompts(None, 24).digest != read_prompts(None, 23).digest
    assert read_prompts(None, 24).digest == read_prompts(None, 24).digest


def test_says_when_there_are_fewer_prompts_than_asked_for() -> None:
    prompts = read_prompts(None, 500)
    assert len(prompts.texts) == 160
    assert prompts.warnings == ("shipped sample has 160 prompts and 500 were asked for; all of them are used.",)


def test_reads_one_prompt_a_line_without_empty_ones(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffWie spät ist es?\r\n\n  What time is it?  \n".encode())
    prompts = read_prompts(file, 2)
    assert (prompts.texts, prompts.source) == (("Wie spät ist es?", "What time is it?"), "prompts.txt")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "holds no prompt", id="empty"),
        pytest.param(b" \n\n", "holds no prompt", id="blank lines"),
        pytest.param(b"good\nna\xefve\n", "is not UTF-8 in line 2", id="Latin-1"),
        pytest.param(b"a" * (MAX_PROMPT_CHARACTERS + 1), "200,001 characters in line 1", id="a whole book in a line"),
        pytest.param(b"a line\n" * (MAX_FILE_BYTES // 7 + 1), f"at most {MAX_FILE_BYTES:,} are read", id="huge"),
    ],
)
def test_refuses_a_file_with_the_cause(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    with pytest.raises(FailedError) as caught:
        read_prompts(file, 8)
    assert caught.value.reason == "PromptsUnusable"
    assert said in caught.value.message
    assert str(file) in caught.value.message


def test_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="No such file or directory"):
        read_prompts(tmp_path / "none.txt", 8)


def test_warns_of_one_repeated_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Tell me a joke.\n" * 50)
    (warning,) = read_prompts(file, 50).warnings
    assert warning.startswith("Only 1 of 50 prompts are different")


LATIN, CYRILLIC, ARABIC = "abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхцчшщъыьэюя", "ابتثجحخدذرزسشصضطظعغفقكلمنهوي"
HAN, HANGUL, KANA = ("".join(map(chr, range(*span))) for span in ((0x4E00, 0x9FA5), (0xAC00, 0xD7A4), (0x3041, 0x3097)))
CHINESE = (
    "请帮我写一封邮件，告诉房东厨房的水龙头从昨天晚上开始漏水。",
    "我想在阳台上种番茄，应该选多大的花盆，每天要浇多少水？",
    "请用简单的话解释一下，为什么冬天白天比夏天短得多。",
    "帮我把下面的会议记录整理成三个要点，每个要点不要超过二十个字。",
    "我下个星期要去面试，请问我应该准备哪些问题来问对方？",
    "请写一个小故事，主人公是一只害怕下雨的猫，结尾要让人高兴。",
    "为什么面团要放在温暖的地方，如果放在冰箱里会怎么样？",
    "请帮我想十个适合小学生的游戏，下雨天在教室里也可以玩。",
    "我的自行车链条总是掉下来，请告诉我应该怎么检查和修理。",
    "请解释一下利息是怎么计算的，用一个存款一万元的例子来说明。",
    "帮我写一段话，感谢同事在我生病的时候替我完成了工作。",
    "请比较一下火车和飞机，从上海到北京哪一个更方便，为什么？",
    "我想学做红烧肉，请告诉我需要哪些材料，每一步要多长时间。",
    "请用三句话说明什么是数据库，听的人从来没有学过计算机。",
    "帮我给女儿的老师写一封信，说明她明天上午要去看牙医。",
    "请问怎么样才能每天早起，我试过很多次，但是总是坚持不下来。",
    "请把这个句子改得更礼貌一些：你为什么还没有把报告给我？",
    "我想在家里建一个小图书角，请告诉我怎么样给书分类。",
    "请写一首关于秋天的短诗，不要用月亮这个词，也不要用风这个词。",
    "如果一辆汽车一个小时走六十公里，那么两百公里要走多长时间？",
    "请帮我安排一个周末的旅行，两个大人和一个孩子，不要太累。",
    "为什么洗衣服的时候颜色会掉，怎么样才能让新衣服不掉颜色？",
    "请告诉我怎么样写一份好的简历，我刚刚从大学毕业，没有工作经验。",
    "我的电脑最近开机很慢，请告诉我应该先检查什么，再检查什么。",
    "请用一个例子说明，为什么在做决定以前应该先听一听别人的意见。",
)


def drawn(alphabet: Sequence[str], between: str = "") -> list[str]:
    """Forty texts of 100 units each, drawn by lot."""
    source = random.Random(1)
    return [between.join(source.choices(alphabet, k=100)) for _ in range(40)]


def words(letters: str) -> list[str]:
    source = random.Random(2)
    return ["".join(source.choices(letters, k=source.randint(2, 9))) for _ in range(5000)]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(drawn(LATIN + LATIN.upper() + string.digits), id="letters and digits"),
        pytest.param(drawn(string.hexdigits), id="hexadecimal"),
        pytest.param(drawn(words(LATIN), " "), id="Latin words"),
        pytest.param(drawn(words(LATIN)[:300], " "), id="few Latin words"),
        pytest.param(drawn(words(CYRILLIC), " "), id="Cyrillic words"),
        pytest.param(drawn(words(ARABIC), " "), id="Arabic words"),
        pytest.param(drawn(HAN), id="Han"),
        pytest.param(drawn(HAN[:500]), id="few Han"),
        pytest.param(drawn(HANGUL), id="Hangul"),
        pytest.param(drawn(KANA), id="kana"),
        pytest.param(drawn([str(n) for n in range(128_000)], " "), id="token ids"),
        pytest.param(drawn([*words(LATIN), *words(CYRILLIC), *HAN[:5000], *HANGUL[:5000]]), id="tokens of a large vocabulary"),
        pytest.param(
            drawn([w for text in split_units(read_prompts(None, 160).texts) for w in text], " "), id="the sample's words, drawn by lot"
        ),
    ],
)
def test_warns_of_texts_that_are_drawn_by_lot(texts: list[str]) -> None:
    (warning,) = judge(texts)
    assert warning.startswith("The prompts look random")


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(read_prompts(None, 160).texts, id="the sample"),
        pytest.param(CHINESE, id="Chinese"),
        pytest.param([text for topic in topics.values() for text in topic.split("\n\n")][:300], id="documentation of Python"),
        pytest.param(Path(argparse.__file__).read_text(encoding="utf-8").split("\n\n"), id="source code"),
    ],
)
def test_does_not_warn_of_written_text(texts: Sequence[str]) -> None:
    assert judge(texts) == ()
    assert sum(map(len, split_units(list(texts)))) >= LEAST_ORDERED_UNITS, "long enough to be judged"


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(
            [f"Write a poem about the sea and the wind and the sky, number {n}." for n in range(200)], id="one sentence, numbered"
        ),
        pytest.param([f"{n}: " + "and so on, and so on, " * 20 for n in range(8)], id="a few words again and again"),
        pytest.param([f"请帮我写一封邮件，第{n}封。" for n in range(100)], id="Chinese, numbered"),
        pytest.param(["Answer as a patient teacher would, in three short sentences. " * 3 + p for p in CHINESE], id="one long preamble"),
    ],
)
def test_warns_of_texts_that_repeat_each_other(texts: list[str]) -> None:
    warnings = judge(texts)
    assert [w[:33] for w in warnings] == ["The prompts repeat the same text "]


def test_short_texts_are_not_judged() -> None:
    assert judge(drawn(words(LATIN), " ")[:5]) == ()
    assert judge(["a b c d e"] * 1 + ["a b c d e f"]) == ()


def test_huge_texts_are_judged_by_their_beginnings() -> None:
    texts = ["".join(drawn(LATIN)) * 50, *drawn(LATIN)]
    assert sum(len(u) for units in split_units(texts) for u in units) <= JUDGED_CHARACTERS


def test_every_line_of_the_sample_is_one_prompt() -> None:
    folder = Path(__file__).parents[3] / "tuner-job/tabletune_tuner/samples"
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            assert json.loads(line).keys() == {"prompt"}
