"""engine.report() is the page of `longshore report`, with the plan of RUN/plan.json."""

import html
import json

import pytest
import torch

import longshore
import models


def trained(run, steps=4, **options):
    torch.manual_seed(3)
    engine = longshore.wrap(models.gpt2(), run=run, memory="64MiB", lr=1e-3, **options)
    for batch in models.tokens(steps):
        engine.backward(engine(**batch).loss)
        engine.step()
    engine.settle()
    return engine


def test_a_notebook_shows_the_page_and_a_script_saves_it(tmp_path):
    with trained(tmp_path / "a") as engine:
        page = engine.report(tbw="600TB")
    assert page.html.startswith("<!DOCTYPE html>") and "step 4" in page.html and "GPT2LMHeadModel" in page.html
    frame = page._repr_html_()
    assert frame.startswith('<iframe srcdoc="') and html.escape(page.html) in frame
    assert str(page).startswith(f"<Report of {tmp_path / 'a'}: ") and "save(" in str(page)
    assert page.save(tmp_path / "page.html") == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page.html
    page.save(tmp_path / "page.html")
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(longshore.ExistsError, match="no report"):
        page.save(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_closed_engine_is_compared_with_other_runs(tmp_path):
    trained(tmp_path / "<b>other</b>").close()
    engine = trained(tmp_path / "a", steps=2)
    engine.close()
    page = engine.report(tmp_path / "<b>other</b>").html
    assert "2 runs" in page and "&lt;b&gt;other&lt;/b&gt;" in page and "<b>other" not in page
    with pytest.raises(longshore.MissingError, match="not a run"):
        engine.report(tmp_path / "none")
    with pytest.raises(longshore.LongshoreError, match="twice"):
        engine.report(tmp_path / "a")


def test_a_run_without_a_step_says_so(tmp_path):
    with longshore.wrap(models.gpt2(), run=tmp_path / "a", memory="64MiB") as engine:
        assert "No step has been made yet." in engine.report().html


def test_the_page_holds_the_plan_against_the_truth(tmp_path):
    engine = trained(tmp_path / "a")
    engine.close()
    found = json.loads((tmp_path / "a" / "plan.json").read_text())
    text = engine.report().html
    assert "Plan and truth" in text and "What to buy" in text and found["rates"][:20] in text
