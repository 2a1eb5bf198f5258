# What people and CI run. `just` alone lists it.

export RAFTSMAN_LAB := env("RAFTSMAN_LAB", justfile_directory() / "target/lab")
export RAFTSMAN_ETCD_DIR := env("RAFTSMAN_ETCD_DIR", RAFTSMAN_LAB / "etcd")
export RAFTSMAN_ETCDCTL := env("RAFTSMAN_ETCDCTL", RAFTSMAN_LAB / "debs/usr/bin/etcdctl")

default:
    @just --list --unsorted

# Everything that must hold before a commit: format, lints, dependencies, docs, the purity of core
check:
    cargo fmt --check
    cargo clippy --release --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --quiet
    cargo deny --offline check bans licenses sources
    ./tools/core-is-pure

# Build the two binaries
build:
    cargo build --release -p raftsman -p raftsman-agent

# Build everything as the tests need it: with another choice of packages cargo would choose other features, and build all of it again
everything:
    cargo build --release --workspace --all-targets

# Real servers for the tests: etcd of several versions, etcdctl, etcdutl
lab *versions="3.4.45 3.5.34 3.6.14 3.6.15 3.7.2":
    ./tools/lab-etcd "$RAFTSMAN_ETCD_DIR" {{versions}}
    ./tools/lab-debs trixie "$RAFTSMAN_LAB/debs" etcd-client
    ./tools/lab-debs sid "$RAFTSMAN_LAB/sid" etcd-server
    for version in "$RAFTSMAN_ETCD_DIR"/*; do ln -sfn "$RAFTSMAN_LAB/sid/usr/bin/etcdutl" "$version/etcdutl"; done

# The file system of real machines for the tests, and what runs them: needs root, once some minutes
lab-machines:
    ./tools/lab-machine "$RAFTSMAN_LAB/machines"
    ./tools/lab-machine-postgres "$RAFTSMAN_LAB/machines"

# Virtual machines for the tests: libvirt, QEMU and a disk to boot from; needs root, once a minute
lab-vms: lab-machines
    ./tools/lab-vm "$RAFTSMAN_LAB/machines"

# A real S3 store for the tests: the programs of Ceph; needs root, once a minute
lab-ceph:
    ./tools/lab-ceph

# PostgreSQL and Patroni for the tests: Debian's programs, installed by root where they are missing, and a bundle from PyPI
lab-postgres:
    ./tools/lab-postgres "$RAFTSMAN_LAB/postgres"

# An image for machines on Incus and KVM, with all that they need, to target/lab/images; needs root, some minutes: docs/guide/images.md
image *args: build (lab "3.6.15")
    ./tools/image {{args}} "$RAFTSMAN_LAB/images"

# The image made twice, and compared byte by byte
image-twice *args: (image "--check" args)

# All tests but the long ones
test profile="default": everything lab lab-postgres
    cargo nextest run --release --workspace --profile {{profile}}

# What takes up to some minutes: machines, many clusters one after the other, damage and kills at many places
long := """
(binary(machines) & test(/^(conformance|on_incus|libvirt|on_libvirt|balancer_on_hosts|balancer_on_incus)::/))
| (binary(local) & test(/^(restore|killed|pki|notice|backup_store|recovery|beneath|versions)::/))
| (binary(local) & test(/^(backup::a_|secrets::with_a_state|refusals::machines::machines_and|members::a_(cluster|member)|cli::a_fleet|balancer::rolling|agents::upgrades_killed|postgres::whatever)/))
| (binary(attacks) & test(/^(backup|bootstrap)::/))
"""

# What CI runs of the tests: all short ones, and a third of those that take long, another one for another number
test-drawn draw: everything lab lab-postgres
    #!/usr/bin/env bash
    set -u
    tests() { cargo nextest run --release --workspace --profile ci "$@"; }
    # Few beside each other: what stands up machines and clusters waits less than the others.
    tests --test-threads 4 --partition "hash:$(({{draw}} % 3 + 1))/3" -E '{{long}}'
    failed=$?
    tests -E 'not ({{long}})'
    exit $((failed | $?))

# The long ones: every moment of a kill, a million documents, two million simulated plans
soak: everything lab lab-postgres
    RAFTSMAN_SOAK=1 RAFTSMAN_MUTATIONS=1000000 RAFTSMAN_SIM_PLANS=2000000 cargo nextest run --release --workspace --no-capture

# One digest of all decisions in seeded worlds: the same on two commits when a change was not meant to change any
trace: everything
    cargo nextest run --release --workspace --test simulation --no-capture --run-ignored only -E 'test(/^trace::/)'

# Bring-up against the bare engine: five members by hand and by raftsman, side by side
bench-up *args: everything lab
    ./target/release/measure bench-up {{args}}

# Machines on Incus from nothing to a cluster, by hand and by raftsman, side by side; needs root
bench-incus *args: everything lab lab-machines
    ./target/release/measure bench-incus {{args}}

# Machines made and given back on Incus while its API loses requests and replies; needs root
faults runs="500": everything lab-machines
    RAFTSMAN_FAULT_RUNS={{runs}} cargo nextest run --release --workspace --test machines --no-capture -E 'test(/^conformance::.*faults/)'

# A full backup to a real Ceph, beside the bare ways: just bench-backup [MiB] [ROUNDS] [SAMPLES]; needs root
bench-backup *args: everything lab lab-ceph
    ./target/release/measure bench-backup {{args}}

# All members restored from a backup, beside etcdutl by hand: just bench-restore [MiB] [ROUNDS]
bench-restore *args: everything lab
    ./target/release/measure bench-restore {{args}}

# Which ports of machines answer to which clients, every one tested; needs root
ports: everything lab lab-machines
    RAFTSMAN_SOAK=1 cargo nextest run --release --workspace --test machines --no-capture -E 'test(/^on_incus::.*answers/)'

# Three members on three libvirt daemons, one of them lost; needs root, some ten minutes
zones: everything lab lab-vms
    RAFTSMAN_SOAK=1 cargo nextest run --release --workspace --test machines --no-capture -E 'test(/^on_libvirt::.*kvm_hosts/)'

# Clients at work while something is done to a cluster: just under-load -- apply --yes
[positional-arguments]
under-load *args: everything lab
    ./target/release/measure under-load "$@"

# What clients notice of a rolling restart: by hand, by hand with the leader moved first, by raftsman
bench-pause *args: everything lab
    ./target/release/measure bench-pause {{args}}

# Agents upgraded under load, each upgrade killed at a random moment: the next apply finishes it, and clients notice nothing
upgrades runs="50": everything lab
    RAFTSMAN_UPGRADES={{runs}} cargo nextest run --release --workspace --test local --no-capture -E 'test(/^agents::/)'

# Every verb between versions of raftsman, agents and state: a table of what works and what is refused; N−1 is built from a commit
skew before="bbcebaf237939870bbb5e5aaa766b78725bbe3d1": everything lab
    ./target/release/measure skew "$(./tools/lab-before {{before}} target/skew)"

# Planned operations in mixed order under load, one seed each: clients notice nothing
notice operations="100": everything lab
    RAFTSMAN_OPERATIONS={{operations}} cargo nextest run --release --workspace --test local --no-capture -E 'test(/^notice::/)'

# A database of 1 GiB: a member replaced, two more, files rewritten, all restarted, under load; a table
big *args: everything lab
    ./target/release/measure big {{args}}

# Something dies at every step of every operation: a table of what came of it
[positional-arguments]
death *args: everything lab
    ./target/release/measure death "$@"

# The same over operations on a stack with PostgreSQL: just death-pg [--cells N]
[positional-arguments]
death-pg *args: everything lab lab-postgres
    ./target/release/measure death-pg "$@"

# Every verb that only reads, in eight loops beside planned operations and beside death: nothing is undone
readers operations="12" cells="12": everything lab
    RAFTSMAN_READERS=1 RAFTSMAN_OPERATIONS={{operations}} cargo nextest run --release --workspace --test local --no-capture -E 'test(/^notice::/)'
    ./target/release/measure death --readers yes --cells {{cells}}

# A file of 1,000 clusters: check and plan
bench-scale: everything lab
    ./target/release/measure bench-scale

# PostgreSQL behind HAProxy from nothing, by hand and by raftsman, side by side: just bench-pg-up [ROUNDS]
bench-pg-up *args: everything lab lab-postgres
    ./target/release/measure bench-pg-up {{args}}

# For how long writes stop when the primary hands over, by hand and by raftsman, side by side
bench-pg-switchover *args: everything lab lab-postgres
    ./target/release/measure bench-pg-switchover {{args}}

# For how long writes stop when the primary's machine is lost, by hand and by raftsman, side by side
bench-pg-failover *args: everything lab lab-postgres
    ./target/release/measure bench-pg-failover {{args}}

# For how long writes stop while every node restarts for a parameter, beside one switchover by hand
bench-pg-roll *args: everything lab lab-postgres
    ./target/release/measure bench-pg-roll {{args}}

# What is done to the etcd beneath PostgreSQL, and what clients notice: just bench-pg-beneath [PART] for one of so many parts
bench-pg-beneath *args: everything lab lab-postgres
    ./target/release/measure bench-pg-beneath {{args}}

# PostgreSQL under clients while something is done or happens to it, one seed each: no acknowledged commit is lost
postgres operations="100": everything lab lab-postgres
    RAFTSMAN_SEED=0 RAFTSMAN_OPERATIONS={{operations}} cargo nextest run --release --workspace --test local --no-capture -E 'test(/^postgres::whatever/)'

# Every port and login of a stack with PostgreSQL, tried with every certificate and without TLS: a table of what gets in
access-matrix: everything lab lab-postgres
    ./target/release/measure access-matrix

# What Patroni answers and keeps in etcd, for the tests of core: written to crates/core/tests/patroni
record-patroni: everything lab lab-postgres
    cargo nextest run --release --workspace --test local --no-capture --run-ignored only -E 'test(/^beneath::record/)'

# The JSON schema and the snapshots, after a change of the file's types or of a text
accept:
    UPDATE_SCHEMA=1 INSTA_UPDATE=always cargo test --release -p raftsman-core
