# Targets for a fresh clone. Needs a Rust toolchain; .ci/tools checks for the other tools.

CARGO ?= cargo
export CARGO_TARGET_DIR ?= $(CURDIR)/target
HIGHWATER ?= $(CARGO_TARGET_DIR)/release/highwater
PYTHON_REQUIREMENTS = front/cli/tests/programs/requirements.txt front/python/requirements.txt
HIGHWATER_LAB ?= $(CARGO_TARGET_DIR)/release/highwater-lab

PROGRAMS = front/cli/tests/suites/suites.py --markdown docs/programs.md

.PHONY: help build lab install install-c c c-files test test-modes test-programs demo
.PHONY: bench bench-arrays bench-array-libraries bench-examples bench-forks
.PHONY: bench-peers bench-programs bench-remote
.PHONY: reproduction
.PHONY: python python-types package venv tools clean
.PHONY: built-tests deb tarball test-packages test-kernels soak audit book

help:
	@echo "make demo     sort 512 MiB of text in 128 MiB, beside the kernel's swap (8 minutes)"
	@echo "make install  highwater and its library, below PREFIX=$(PREFIX)"
	@echo "make install-c"
	@echo "              the C library: header, libhighwater, files for pkg-config and CMake"
	@echo "make deb, make tarball"
	@echo "              packages of what make install installs, in target/packages"
	@echo "make test     every test, on real programs too"
	@echo "make test-modes"
	@echo "              the programs of the tests, as for a user without privileges (8 minutes)"
	@echo "make python   the Python package, into .venv, and its tests"
	@echo "make python-types"
	@echo "              mypy on the package and its stubs"
	@echo "make lab      highwater-lab: benchmarks, simulated machines, published experiments"
	@echo "make reproduction"
	@echo "              the tables and pictures of docs/reproduction.md, from committed results"
	@echo "make bench    what a page fault costs, beside the kernel's swap on zram (10 minutes)"
	@echo "make bench-arrays"
	@echo "              NumPy on 512 MiB in 128 MiB, beside numpy.memmap (3 minutes)"
	@echo "make bench-forks"
	@echo "              fork, exec and posix_spawn, beside the same without Highwater (1 minute)"
	@echo "make bench-array-libraries"
	@echo "              pandas, scikit-learn, PyArrow on arrays four times the memory (5 minutes)"
	@echo "make bench-examples"
	@echo "              the Rust examples beside mmap, on 1 and 16 threads (10 minutes)"
	@echo "make bench-programs"
	@echo "              sort, NumPy, redis, Python in a third of their memory, beside the kernel's"
	@echo "              swap (10 minutes)"
	@echo "make bench-peers UMAP=DIR VMCACHE=DIR"
	@echo "              UMap, vmcache and Polars beside Highwater (1 to 2 hours)"
	@echo "make bench-remote"
	@echo "              swap on Redis, a cluster and NBD, beside their own benchmarks (5 minutes)"
	@echo "make test-programs [ONLY=PART_OF_A_NAME]"
	@echo "              real programs and suites, without and with Highwater (2 hours)"
	@echo "make test-packages"
	@echo "              each way to install, in a clean Debian (root, 10 minutes)"
	@echo "make test-kernels"
	@echo "              programs on Linux 5.10 to 7.3, in qemu (90 minutes)"
	@echo "make soak [OPTIONS='--minutes 60 --seed 1']"
	@echo "              random programs, settings, kills and faults, contents checked (1 hour)"
	@echo "make audit    known vulnerabilities and licences of all crates (needs cargo-deny)"
	@echo "make book     the pages of docs as a book, in target/book"
	@echo "make clean    remove what was built"

# Two builds: cargo unifies the features of crates that it builds together, and the laboratory turns
# on highwater-mm's feature `history`, which the product must be built without.
PRODUCT = --package highwater-cli --package highwater-preload
build:
	$(CARGO) build --release $(PRODUCT)

lab:
	$(CARGO) build --release --package highwater-lab

PREFIX ?= /usr/local
install: build
	install -D -m 755 $(HIGHWATER) $(DESTDIR)$(PREFIX)/bin/highwater
	install -D -m 755 $(dir $(HIGHWATER))libhighwater_preload.so \
	    $(DESTDIR)$(PREFIX)/lib/highwater/libhighwater_preload.so
	$(HIGHWATER) manual $(DESTDIR)$(PREFIX)/share
	install -d $(DESTDIR)$(PREFIX)/share/doc/highwater/docs
	install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT \
	    $(DESTDIR)$(PREFIX)/share/doc/highwater
	install -m 644 docs/*.md $(DESTDIR)$(PREFIX)/share/doc/highwater/docs
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/highwater/docs/reproduction \
	    docs/reproduction/*.svg

# The installed files, as a tree that works wherever it is unpacked, and as a Debian package, for
# systems whose C library is not older than this one's.
PACKAGES = $(CARGO_TARGET_DIR)/packages
TREE = highwater-$(VERSION)-$(shell uname -m)-linux
tarball:
	rm -rf $(PACKAGES)/highwater-*
	$(MAKE) install DESTDIR= PREFIX=$(PACKAGES)/$(TREE)
	tar --create --gzip --file $(PACKAGES)/$(TREE).tar.gz --directory $(PACKAGES) \
	    --sort=name --owner=0 --group=0 --numeric-owner $(TREE)
	@echo $(PACKAGES)/$(TREE).tar.gz

deb:
	@command -v cargo-deb >/dev/null || { echo "first: cargo install cargo-deb" >&2; exit 1; }
	rm -rf $(CARGO_TARGET_DIR)/release/deb $(PACKAGES)/highwater_*.deb
	$(MAKE) install DESTDIR=$(CARGO_TARGET_DIR)/release/deb PREFIX=/usr
	gzip -9 --no-name $(CARGO_TARGET_DIR)/release/deb/usr/share/man/man1/*
	$(CARGO) deb --no-build --package highwater-cli --output $(PACKAGES)/

# Tests each way of installing on a clean Debian, where sort and Python then run.
test-packages: deb tarball
	front/cli/tests/packages/packages.py $(PACKAGES)

# Tests on distribution kernels in qemu; docs/kernels.md says what is needed. OPTIONS as in
# `cargo run -p highwater-xtask -- kernels --help`; HIGHWATER_WRITE_DOCS=1 writes that page.
test-kernels: build
	$(CARGO) run --package highwater-xtask -- kernels $(OPTIONS)

# Random runs, each determined by its seed; docs/promises.md says what is random. OPTIONS as
# in `cargo run -p highwater-xtask -- soak --help`.
soak: tools venv build
	$(CARGO) run --release --package highwater-xtask -- soak $(OPTIONS)

# Vulnerabilities, licences and sources of the crates that are built, by deny.toml. Not part of
# `make test`, because known vulnerabilities change without a change here.
audit:
	@command -v cargo-deny >/dev/null || { echo "first: cargo install cargo-deny" >&2; exit 1; }
	$(CARGO) deny check

book:
	@command -v mdbook >/dev/null || { echo "first: cargo install mdbook" >&2; exit 1; }
	mdbook build docs

# The C library; building the program does not depend on it. `c-files` installs the files in
# C_LIBRARIES: the tests install their own build.
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
C_LIBRARIES ?= $(CARGO_TARGET_DIR)/release
VERSION = $(shell sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' Cargo.toml)
C_ABI = $(basename $(VERSION))
# Libraries that Rust's standard library needs (rustc --print native-static-libs).
C_PRIVATE = -lgcc_s -lutil -lrt -lpthread -lm -ldl
C_FILL = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(VERSION)|g' -e 's|@ABI@|$(C_ABI)|g' \
    -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|g' \
    -e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))|g'
C_TO = $(DESTDIR)$(LIBDIR)

install-c: c
	$(MAKE) c-files

c:
	$(CARGO) build --release --package highwater-c

# The static library is one object that exports only the header's names, because a program may have
# another zstd, or another Rust library. The LLVM bitcode in Rust's standard library is removed: an
# older LLVM plugin of ar or ld fails on it.
c-files:
	install -d $(C_TO)/pkgconfig $(C_TO)/cmake/highwater
	install -D -m 644 front/c/include/highwater.h $(DESTDIR)$(INCLUDEDIR)/highwater.h
	install -m 755 $(C_LIBRARIES)/libhighwater_c.so $(C_TO)/libhighwater.so.$(VERSION)
	ln -sf libhighwater.so.$(VERSION) $(C_TO)/libhighwater.so.$(C_ABI)
	ln -sf libhighwater.so.$(C_ABI) $(C_TO)/libhighwater.so
	$(LD) -r -o $(C_TO)/highwater.o --whole-archive $(C_LIBRARIES)/libhighwater_c.a
	objcopy --wildcard --keep-global-symbol='highwater_*' \
	    --localize-symbol='highwater_copy_page*' --strip-debug \
	    --remove-section .llvmbc --remove-section .llvmcmd $(C_TO)/highwater.o
	rm -f $(C_TO)/libhighwater.a
	$(AR) rcs $(C_TO)/libhighwater.a $(C_TO)/highwater.o
	rm $(C_TO)/highwater.o
	$(C_FILL) -e 's|@PRIVATE@|$(C_PRIVATE)|g' \
	    front/c/install/highwater.pc.in > $(C_TO)/pkgconfig/highwater.pc
	$(C_FILL) -e 's|@PRIVATE@|$(subst $(eval ) ,;,$(C_PRIVATE))|g' \
	    -e "s|@TO_INCLUDE@|$$(realpath -m --relative-to $(LIBDIR)/cmake/highwater $(INCLUDEDIR))|g" \
	    front/c/install/highwater-config.cmake.in > $(C_TO)/cmake/highwater/highwater-config.cmake
	$(C_FILL) front/c/install/highwater-config-version.cmake.in \
	    > $(C_TO)/cmake/highwater/highwater-config-version.cmake

# Programs run with the release build, all other tests with assertions. Examples of the library are
# modules of its tests, and need not be built separately. With HIGHWATER_REQUIRE=all, as in CI, a
# test that cannot run fails. The Python package's tests are in Python and use a separate build.
OTHER_EXAMPLES = --example events --example random_lines
TESTED = --workspace --exclude highwater-python
RUNNER = --config 'target."cfg(unix)".runner=["$(CURDIR)/.ci/runner"]'
UNIT_TESTS = $(CARGO) test $(TESTED) --lib --bins --tests $(OTHER_EXAMPLES)
test: tools venv
	$(MAKE) --jobs $(shell nproc) build built-tests
	HIGHWATER=$(HIGHWATER) $(UNIT_TESTS) $(RUNNER)
	$(CARGO) test $(TESTED) --doc
	$(MAKE) python

# The release build ends with links that use one CPU each: tests are compiled beside it.
built-tests:
	$(UNIT_TESTS) --no-run

python: package
	.venv/bin/python -m pytest --quiet front/python/tests

# Checks that the package's stubs match the extension module, and that its types are correct.
python-types: package
	.venv/bin/pip install --quiet --disable-pip-version-check mypy
	cd front/python && ../../.venv/bin/python -m mypy.stubtest --ignore-disjoint-bases \
	    highwater._highwater
	cd front/python && ../../.venv/bin/python -m mypy --strict --allow-untyped-calls \
	    python/highwater

# Runs the programs of the tests with handler threads, with and without copies for system calls.
test-modes: tools venv build
	HIGHWATER=$(HIGHWATER) HIGHWATER_TEST_MODE=handlers \
	    $(CARGO) test --package highwater-cli --test programs
	HIGHWATER=$(HIGHWATER) HIGHWATER_TEST_MODE=copies \
	    $(CARGO) test --package highwater-cli --test programs

# HIGHWATER names another build, SUITE_PYTHON a Python with its package `test`.
test-programs: build
	HIGHWATER=$(HIGHWATER) python3 $(PROGRAMS) $(ONLY)

demo:
	@demo/sort.sh check
	$(CARGO) build --release $(PRODUCT)
	$(CARGO) build --release --package highwater-cli --example random_lines
	@demo/sort.sh run

# Faults of pmbench, compared with the kernel's swap on zram. Needs root, 10 minutes, and an
# otherwise idle machine.
bench: lab
	$(HIGHWATER_LAB) bench faults

# The tables and pictures of docs/reproduction.md, from committed results.
reproduction: lab
	$(HIGHWATER_LAB) page docs/reproduction.md --results lab/reproduce/results.json \
		$(patsubst %,--calibration %,$(wildcard lab/reproduce/calibrations/*.json))

# OPTIONS as in demo/arrays.py. Needs root for the limits.
bench-arrays: package
	.venv/bin/python demo/arrays.py $(OPTIONS)

# HIGHWATER names another build; OPTIONS as in demo/forks.py.
bench-forks: build
	demo/forks.py --ours $(HIGHWATER) $(OPTIONS)

# OPTIONS as in demo/array_libraries.py. Needs root for the limits.
bench-array-libraries: package
	.venv/bin/pip install --quiet --disable-pip-version-check pandas scikit-learn pyarrow polars
	.venv/bin/python demo/array_libraries.py $(OPTIONS)

# Needs root for the limits. DIRECTORY is on the disk to measure.
DIRECTORY ?= /var/tmp
bench-examples:
	$(CARGO) build --release --package highwater --examples
	for example in hash_join btree traversal; do \
	    echo $$example; \
	    $(CARGO_TARGET_DIR)/release/examples/$$example --compare $(DIRECTORY) || exit 1; \
	done

# HIGHWATER names another build; OPTIONS as in demo/real_work.py.
bench-programs: build venv
	$(CARGO) build --release --package highwater-cli --example random_lines
	HIGHWATER=$(HIGHWATER) demo/real_work.py $(OPTIONS)

# UMAP and VMCACHE are the directories where these are cloned and built; OPTIONS as in
# demo/peers.py. Needs root for the limits.
PEERS = --umap '$(UMAP)' --vmcache '$(VMCACHE)' --target $(CARGO_TARGET_DIR) $(OPTIONS)
bench-peers:
	@demo/peers.py --check $(PEERS)
	$(MAKE) build c venv
	.venv/bin/pip install --quiet --disable-pip-version-check polars pyarrow
	.venv/bin/python demo/peers.py $(PEERS)

# OPTIONS as in demo/remote_swap.py.
bench-remote: lab
	demo/remote_swap.py --lab $(HIGHWATER_LAB) $(OPTIONS)

# maturin, in .venv, builds in cargo's usual directory, so that little is compiled again.
package: venv
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pip install --quiet --disable-pip-version-check \
	    --no-build-isolation --no-deps ./front/python

venv: .venv/ready

.venv/ready: $(PYTHON_REQUIREMENTS) | tools
	python3 -m venv --clear .venv
	.venv/bin/pip install --quiet --disable-pip-version-check \
	    $(addprefix --requirement ,$(PYTHON_REQUIREMENTS))
	touch $@

tools:
	@.ci/tools

clean:
	$(CARGO) clean
	rm -rf .venv
