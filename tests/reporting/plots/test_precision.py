"""The plots of a choice of precisions: the measured models and the loss of each module, well formed and escaped."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from hostile import VECTORS, poisoned
from reporting.sample_quantization import sample_choice, sample_scores
from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.quantization import Choice, Interval
from sardonyx.reporting.quantization import front, loss_limit, sensitivity

SVG = "{http://www.w3.org/2000/svg}"


def choice() -> Choice:
    made = sample_choice().choice
    assert made is not None
    return made


def places(text: str, kind: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(text).iter(f"{SVG}circle")
    return [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in found if each.attrib["class"] == kind]


def test_a_point_is_right_of_one_with_less_loss_and_below_a_slower_one() -> None:
    made = choice()
    first, second = made.points
    fast = replace(second, time=None, predicted_time=0.3)  # not timed: a hollow point
    text = front(replace(made, points=(first, fast))).file()
    (chosen,), (guess,) = places(text, "ring"), places(text, "guess")[1:]  # without the legend
    assert guess[0] > chosen[0]
    assert guess[1] > chosen[1]  # y grows downward
    assert "mixed 1 (1 int8, 1 float32), relative L2 0.005 [0.004, 0.006], top-1 75.0 %, time 0.60 ×" in text
    assert "time 0.30 ×, predicted" in text
    assert 'class="front"' in text
    assert "budget 0.01" in text


def test_intervals_are_inside_the_plot() -> None:
    made = choice()
    unsure = replace(made.points[0], time=Comparison(0.6, 0.21, 1.4, 0.01, Finding.SAME, 8))
    root = ElementTree.fromstring(front(replace(made, points=(unsure, made.points[1]))).file())
    ends = [float(line.attrib[end]) for line in root.iter(f"{SVG}line") for end in ("y1", "y2")]
    rules = [float(line.attrib["y1"]) for line in root.iter(f"{SVG}line") if line.attrib["class"] == "rule"]
    assert (min(ends), max(ends)) == (min(rules), max(rules))


def test_bytes_are_drawn_if_they_are_the_objective() -> None:
    made = replace(choice(), objective="bytes", budget=("bytes<=40%",))
    text = front(made).file()
    assert "bytes relative to the source" in text
    assert text.count('class="limit"') == 1  # of the bytes, and none of the loss
    assert "time predicted" not in text


@pytest.mark.parametrize(
    ("budget", "limit"),
    [(("relative_l2<=0.02",), 0.02), (("relative_l2<2%", "top1>=0.9"), 0.02), (("cosine>=0.9",), None), (("?",), None)],
)
def test_the_limit_of_the_loss_is_that_of_the_budget(budget: tuple[str, ...], limit: float | None) -> None:
    assert loss_limit(replace(choice(), budget=budget)) == limit


def test_the_chosen_precision_of_each_module_is_marked() -> None:
    made = choice()
    reverse = replace(made, groups=made.groups[::-1])  # drawn in the order of the modules all the same
    text = sensitivity(sample_choice(), reverse).file()
    assert text == sensitivity(sample_choice(), made).file()
    assert len(places(text, "ring")) == 1  # the encoder; the head stays in float32
    assert "encoder alone in int8, relative L2 0.004 [0.0032, 0.0048], saves 0.2 ms" in text
    assert [each for each in ("encoder", "head", "float32") if f">{each}<" in text] == ["encoder", "head", "float32"]


def test_a_loss_of_zero_is_drawn_at_the_start() -> None:
    made = choice()
    zero = replace(sample_scores(0.01), relative_l2=Interval(0.0, 0.0, 0.0))
    text = front(replace(made, points=(replace(made.points[0], scores=zero),))).file()
    assert places(text, "ring")[0][0] == 72
    assert "NaN" not in text


def test_names_are_text_and_equal_records_give_equal_bytes() -> None:
    assert front(choice()).file() == front(choice()).file()
    hostile = poisoned(choice())
    for picture in (front(hostile), sensitivity(sample_choice(), hostile)):
        ElementTree.fromstring(picture.file())
        assert "<script" not in picture.file()
        assert not any(vector in picture.file() for vector in VECTORS.values() if "<" in vector)
