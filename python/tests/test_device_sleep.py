"""engine.sleep() on a device that PyTorch has and the machine has not (standin.py): none of its memory stays, and the
bits are those of an engine that never slept."""

import standin

WAYS = 10


def ways(told):
    found = {name: of for name, of in told.items() if isinstance(of, list)}
    assert len(found) == WAYS
    return found


def test_bits_are_those_of_an_engine_that_never_slept(told):
    for name, (awake, slept) in ways(told).items():
        assert slept["digest"] == awake["digest"] and slept["numbers"] == awake["numbers"], name


def test_no_memory_of_the_device_and_no_pinned_memory_stays(told):
    """Also in a model whose buffers lie there."""
    for name, (_, slept) in ways(told).items():
        assert slept["held"] == [[0, 0]] * 3, name


def test_objects_places_and_values(told):
    """Parameters and buffers stay the same objects. weights() of a sleeping engine has the values of state_dict()."""
    for name, (_, slept) in ways(told).items():
        assert slept["other"] == [], name


def test_memory_is_short_as_it_wakes(told):
    """The engine sleeps on, holds nothing of what it got, and wakes later with the same bits."""
    short = told["short"]
    assert "for parameters are refused" in short["said"][0] and "of pinned memory" in short["said"][1]
    for said in short["said"]:
        assert said.startswith("engine.wake: ") and said.endswith("call engine.wake() again when there is memory")
    assert short["asleep"] == "engine.step: the engine sleeps: engine.wake() wakes it"
    assert short["held"] == [0, 0] and short["weights"] > 0 and short["digest"] == told["unslept"]


def test_a_graph_from_before(told):
    """It does not hold the pool that its activations went through."""
    assert told["graph"]["pinned"] == 0 and "has slept since" in told["graph"]["said"]


def test_closed_in_its_sleep(told):
    assert told["reopened"] == {
        "closed": "engine.weights: the engine is closed; longshore.resume() opens its run again",
        "places": [standin.NAME],
    }


def test_a_device_that_does_not_go_on(told):
    assert "the device is lost" in told["lost"]["said"] and told["lost"]["same"]
