//! A backup of a large database → all members restored from it by raftsman, beside `etcdutl snapshot restore` by hand on
//! three members in parallel and their start. Alternating in one run; everything shares the machine's cores.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use raftsman_backup::full::{self, TransferProgress};
use raftsman_backup::{Keys, Place, Repository, Store, Trust};
use raftsman_core::backup::Layout;
use raftsman_core::spec::Name;
use raftsman_tests::bulk::Bulk;
use raftsman_tests::figures::median;
use raftsman_tests::lab::{Lab, etcd_dir};

const VERSION: &str = "3.6.15";
const VALUE: usize = 16 << 10;
const HANDS: [&str; 3] = ["127.68.1.1", "127.68.1.2", "127.68.1.3"];

/// Members that were started by hand.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// As operators do it by hand, with the snapshot on every machine already: until a majority answers.
fn by_hand(snapshot: &Path, dir: &Path) -> f64 {
    let begun = Instant::now();
    let bin = |name: &str| etcd_dir().join(VERSION).join(name);
    let peer = |address: &str| format!("http://{address}:2380");
    let all = HANDS.map(|address| format!("{address}={}", peer(address))).join(",");
    let data = |address: &str| dir.join(address);
    let restoring = HANDS.map(|address| {
        let mut restore = Command::new(bin("etcdutl"));
        restore.args(["snapshot", "restore"]).arg(snapshot).arg("--data-dir").arg(data(address));
        restore.args([format!("--name={address}"), format!("--initial-cluster={all}")]);
        restore.arg(format!("--initial-advertise-peer-urls={}", peer(address)));
        restore.args(["--bump-revision=1000000000", "--mark-compacted"]).stdout(Stdio::null()).stderr(Stdio::null());
        restore.spawn().expect("etcdutl")
    });
    for mut restore in restoring {
        assert!(restore.wait().expect("etcdutl").success(), "restored by hand");
    }
    let started = HANDS.map(|address| {
        let clients = format!("http://{address}:2379");
        let mut etcd = Command::new(bin("etcd"));
        etcd.arg("--data-dir").arg(data(address)).arg(format!("--name={address}"));
        etcd.args([format!("--listen-client-urls={clients}"), format!("--advertise-client-urls={clients}")]);
        etcd.arg(format!("--listen-peer-urls={}", peer(address))).arg("--quota-backend-bytes=8589934592");
        etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd")
    });
    let _members = Members(started.into());
    // As TLS is not in its way, it has less to do. Auth is on in the backup: `/health` needs no user.
    let healthy = |address: &str| -> bool {
        let asked = || -> io::Result<String> {
            let mut stream = TcpStream::connect((address, 2379))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        asked().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
    };
    while !HANDS.iter().all(|address| healthy(address)) {
        assert!(begun.elapsed() < Duration::from_secs(300), "by hand it does not come up");
        std::thread::sleep(Duration::from_millis(50));
    }
    begun.elapsed().as_secs_f64()
}

/// The snapshot of a backup, as an operator has it before a restore by hand.
fn fetch(shelf: &Path, name: &str, to: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (fleet, cluster) = (Name::fixed("lab"), Name::fixed("main"));
    let layout = Layout::new("", &fleet, &cluster);
    runtime.block_on(async {
        let store = Store::open(&Place::Directory(shelf.to_owned())).expect("the store");
        let name = name.parse().expect("a name");
        let trust = Trust { unsigned: true, ..Trust::default() };
        let repository = Repository { store, layout, cluster, trust };
        let manifest = repository.manifest(name).await.expect("a manifest");
        let file = std::fs::File::create(to).expect("a file");
        full::fetch(&repository, &manifest, &Keys::default(), &TransferProgress::default(), file)
            .await
            .expect("fetched");
    });
}

/// Measures for how long no client can write, until it is called: the longest time in seconds.
fn closed(lab: &Lab) -> impl FnOnce() -> f64 + use<> {
    let bulk = Bulk::of(lab);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let watching = std::thread::spawn(move || {
        let (mut open, mut longest) = (Instant::now(), Duration::ZERO);
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let wrote = bulk.with(async |mut client| {
                let writing = client.put("bench", "written", None);
                tokio::time::timeout(Duration::from_millis(500), writing).await.is_ok_and(|wrote| wrote.is_ok())
            });
            if wrote {
                open = Instant::now();
            }
            longest = longest.max(open.elapsed());
            std::thread::sleep(Duration::from_millis(20));
        }
        longest.as_secs_f64()
    });
    move || {
        drop(stop);
        watching.join().expect("it was watched")
    }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let said = |n: usize| arguments.get(n - 1).and_then(|n| n.parse::<usize>().ok());
    let (mib, rounds) = (said(1).unwrap_or(1024), said(2).unwrap_or(3));
    let shelf = tempfile::tempdir().expect("a directory");
    let lab = Lab::cluster(3, VERSION, &["quota: 8GiB"]);
    lab.write_file(&format!("{}backups:\n  store: {{ directory: {:?} }}\n", lab.file(), shelf.path()));
    lab.run(&["apply", "--yes"]).ok();
    Bulk::of(&lab).pour_noise("bulk/", mib << 20, VALUE).expect("written");
    let lines = lab.run(&["backup", "now", "--json"]).ok().json_lines();
    let name = lines.last().expect("a line")["backup"]["name"].as_str().expect("a name").to_owned();
    let snapshot = shelf.path().join("snapshot.db");
    fetch(shelf.path(), &name, &snapshot);
    let size = std::fs::metadata(&snapshot).expect("a snapshot").len() >> 20;
    println!("etcd {VERSION}, three members, {size} MiB; {rounds} rounds");

    let (mut bare, mut ours, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        let dir = tempfile::tempdir_in(shelf.path()).expect("a directory");
        bare.push(by_hand(&snapshot, dir.path()));
        drop(dir);
        let (begun, closed) = (Instant::now(), closed(&lab));
        let said = lab.run(&["restore", "--yes", "--backup", &name]).ok().stdout;
        ours.push(begun.elapsed().as_secs_f64());
        stopped.push(closed());
        let last = |figures: &[f64]| figures.last().copied().unwrap_or_default();
        println!("round {round}: by hand {:.1} s, raftsman {:.1} s", last(&bare), last(&ours));
        let parts = said.lines().filter(|line| ["tested", "main:", "done"].iter().any(|word| line.starts_with(word)));
        parts.for_each(|part| println!("    {part}"));
    }
    let (bare, ours) = (median(bare), median(ours));
    println!("medians: by hand {bare:.1} s, raftsman {ours:.1} s, from the store to a cluster that serves all users");
    println!("of these no client could write for {:.1} s", median(stopped));
    let (ratio, goal) = (ours / bare, 1.2);
    println!("bench-restore ratio={ratio:.2} goal={goal}");
    if ratio <= goal { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
