# A thin front of CMake: the rules are in CMakeLists.txt and CMakePresets.json.
.PHONY: all deps demo test test-c test-python stress bench install wheel reference lint format fuzz asan tsan clean
BUILD := build
PREFIX := /usr/local
# Most tests wait for a drive; those that compute with two threads say so (PROCESSORS).
CTEST := ctest --output-on-failure -j 4
# OpenMP's runtime is not instrumented: what the thread sanitizer says of its threads is false, and takes minutes
tsan: export OMP_NUM_THREADS := 1

all:
	@scripts/deps --check build
	@scripts/build release longshore

deps:
	@scripts/deps build test

demo:
	@scripts/deps build demo
	@scripts/build release longshore tool_peak
	@scripts/demo.sh

test: test-c test-python

test-c:
	@scripts/deps build test
	@scripts/build release
	@$(CTEST) --test-dir $(BUILD)

stress:
	@scripts/deps build test
	@scripts/stress

test-python:
	@scripts/deps build python
	@scripts/python-test

asan tsan:
	@scripts/deps build unit
	@scripts/build $@ checks
	@$(CTEST) --test-dir $(BUILD)/$@ -LE 'e2e|slow'

bench:
	@scripts/deps build bench
	@scripts/build release
	@bench/all.sh

install:
	@scripts/deps --check build
	@scripts/build release longshore longshore_shared longshore_static man
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

wheel:
	@scripts/deps build python
	@scripts/wheel

# docstrings of the Python package as one page, build/python-api.md
reference:
	@scripts/python-reference

lint:
	@scripts/deps build lint python
	@scripts/lint

format:
	@scripts/deps lint
	@git ls-files -z --cached --others --exclude-standard '*.c' '*.h' '*.cpp' | xargs -0 clang-format -i

fuzz:
	@scripts/deps build fuzz
	@scripts/fuzz

clean:
	rm -rf $(BUILD)
