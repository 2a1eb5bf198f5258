//! An image of `just image` → a cluster on machines that boot from it: nothing is installed there, and no etcd is sent.

use std::path::PathBuf;
use std::process::Command;

use raftsman_tests::incus::{Incus, NETWORK, SUBNET};
use raftsman_tests::lab::{Lab, etcd_dir, soak, text};
use serde_json::Value;

/// The newest image: where its files are, without what their names end with, and its manifest. The long tests need one.
fn newest() -> Option<(PathBuf, Value)> {
    let images = std::env::var_os("RAFTSMAN_LAB").map(|lab| PathBuf::from(lab).join("images"));
    let entries = images.and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let manifests = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".manifest.json"));
    let manifest = manifests.max_by_key(|entry| entry.metadata().and_then(|found| found.modified()).ok());
    assert!(manifest.is_some() || !soak(), "RAFTSMAN_LAB with an image in it: run `just image` as root first");
    let manifest = manifest?.path();
    let read = std::fs::read(&manifest).expect("the manifest");
    let read: Value = serde_json::from_slice(&read).expect("JSON");
    Some((manifest.with_file_name(read["name"].as_str().expect("a name")), read))
}

#[test]
fn machines_boot_from_the_image_and_become_a_cluster() {
    let Some((image, manifest)) = newest() else { return };
    let part = |ending: &str| PathBuf::from(format!("{}.{ending}", image.display()));
    for (file, promised) in manifest["files"].as_object().expect("files") {
        let sum = text(Command::new("sha256sum").arg(image.with_file_name(file)).output().expect("sha256sum")).ok();
        assert_eq!(sum.stdout.split(' ').next(), promised.as_str(), "{file}");
    }

    let incus = Incus::up();
    let mut import = incus.client(&["image", "import"]);
    import.args([part("meta.tar"), part("squashfs")]).args(["--alias", "tried", "--quiet"]);
    text(import.output().expect("incus runs")).ok();
    let before = incus.inventory();
    let version = manifest["etcd"]["version"].as_str().expect("a version");
    let lab = Lab::new(&format!(
        "fleet: lab\nmachines:\n  provider: incus\n  image: tried\n  subnet: {SUBNET}\n  install_dependencies: false\n  \
         data_disk: 1GiB\n  node_exporter: true\n  incus: {{ server: {:?}, network: {NETWORK}, pool: default }}\n\
         etcd:\n  main:\n    version: {version}\n    source: {{ directory: {:?} }}\n    members: 3\n",
        incus.socket(),
        etcd_dir()
    ));
    lab.run(&["apply", "--yes", "--timeout", "180s"]).ok();
    lab.settled();
    lab.nothing_to_do();

    // etcd was there: the data disk does not hide it.
    let output = incus.exec("main-1", "journalctl -b -u raftsman-agent --no-pager").ok().stdout;
    assert!(output.contains("etcd installed") && !output.contains("bytes that were sent"), "{output}");
    // All programs can run, and only the configured ones do.
    let patroni = "cd $(mktemp -d) && tar -xf /usr/local/lib/raftsman/artifacts/patroni-* && \
                   sha256sum --quiet --check MANIFEST && python3 -I -B start.py --version";
    let said = incus.exec("main-1", patroni).ok().stdout;
    let version = manifest["patroni"]["version"].as_str().expect("a version");
    assert!(said.contains(version), "{said}");
    incus.exec("main-1", "ls /usr/lib/postgresql/*/bin/postgres").ok();
    incus.exec("main-1", "systemctl is-active prometheus-node-exporter ssh").ok();
    let idle = incus.exec("main-1", "systemctl is-active postgresql").failed().stdout;
    assert!(!idle.lines().any(|line| line == "active"), "{idle}");
    let failed = incus.exec("main-1", "systemctl --failed --no-legend --plain").ok().stdout;
    assert_eq!(failed, "", "units that failed");
    // Each machine is one of its own.
    let identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub";
    let (one, two) = (incus.exec("main-1", identity).ok().stdout, incus.exec("main-2", identity).ok().stdout);
    assert!(one.lines().zip(two.lines()).all(|(one, two)| one != two), "{one}{two}");

    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(incus.inventory(), before);
}
