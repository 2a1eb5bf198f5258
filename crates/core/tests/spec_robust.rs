//! Mutated and hostile files → an answer, quickly, and never a panic.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test reads its samples, keeps the time and prints; core itself must not"
)]
#![allow(clippy::print_stdout)] // Timings, shown with --nocapture.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raftsman_core::spec::{Provider, read};

const SEEDS: [&str; 6] = [
    "fleet: shop\netcd:\n  main:\n    members: 3\n",
    "fleet: shop\nstate: .raftsman\nmachines:\n  provider: local\n  network: 127.0.42.0/24\n  admin:\n    user: ops\n    console_password: { file: console.txt }\netcd:\n  main:\n    members:\n      - name: etcd-1\n        address: 127.0.42.11\n      - name: etcd-2\n        address: 127.0.42.12\n      - name: etcd-3\n    version: 3.6.15\n    timers: &far { heartbeat: 200ms, election: 2s }\n    auth:\n      mode: password\n      root_password: { env: ROOT_PASSWORD }\n    flags:\n      max-request-bytes: 10485760\n  spare:\n    members: 5\n    timers: *far\n    source: { archive: { file: etcd-v3.6.15-linux-amd64.tar.gz, sha256: 00 } }\n",
    "# für später\r\nfleet: \"shop\"\r\netcd: { main: { members: [ { name: a }, { name: 'b' }, {name: c, address: \"::1\"} ], quota: 8GiB } }\r\n",
    "fleet: shop\netcd:\n  main:\n    members: 3\n    ca:\n      peers:\n        brought:\n          certificate: ca.pem\n          key: { file: ca.key }\n    certificates:\n      organization: >\n        Größe\n        & Söhne\n      extra_names: [etcd.example.com, \"*.example.com\"]\n      extra_addresses: [10.0.0.5]\n      validity: 90d\n      renew_before: 30d\n    auto_compaction:\n      mode: periodic\n      retention: 1h\n    log_level: warn\n    corruption_checks: { initial: true, compact_hash: true }\n",
    "fleet: shop\netcd:\n  main:\n    members: 3\n    auth: { mode: password }\npostgres:\n  app:\n    etcd: main\n    nodes: 3\n    patroni: { ttl: 30, loop_wait: 10, retry_timeout: 10, scope: app, namespace: /service/ }\n    parameters:\n      max_connections: 200\n      shared_preload_libraries: pg_stat_statements\n    superuser: { password: { env: PG_PASSWORD } }\n    roles:\n      app: { password: { file: app.password }, member_of: [readers] }\n      readers: { login: false, settings: { work_mem: 64MB } }\n    databases:\n      app: { owner: app, extensions: [pg_stat_statements] }\n    access:\n      - { databases: [app], users: [app], from: [10.0.0.0/8] }\n    synchronous: { mode: quorum, nodes: 1 }\n    failsafe: true\n    watchdog: { mode: automatic, safety_margin: -1 }\n",
    "fleet: shop\nmachines: { provider: libvirt, image: debian, subnet: 10.0.0.0/24, logs: { patroni_tag: pg, buffer: { mem_limit: 5MiB } } }\npostgres:\n  app:\n    version: 17.11\n    source: { archive: { url: \"https://example.com/pg.tar\", sha256: 00 } }\n    etcd:\n      endpoints: [\"10.0.0.5:2379\", \"[fd00::5]:2379\"]\n      ca_cert: etcd-ca.pem\n      username: patroni\n      password: { file: etcd.password }\n    nodes:\n      - { name: pg-1, address: 10.0.0.11, zone: a, tags: { nofailover: true, failover_priority: 0 } }\n      - { name: pg-2, patroni_name: two, machine: { memory: 16GiB } }\n    machines: { data_disk: 100GiB, firewall: { postgres_from: [10.0.0.0/8], rest_from: [] }, logs: { patroni_tag: x } }\n    patroni:\n      version: 4.1.5\n      source: { bundle: { file: \"patroni-{version}.tar\", sha256: { 4.1.5: 00 } } }\n    ca: { brought: { certificate: ca.pem, key: { file: ca.key } } }\n    backups: { full_every: 1w, diff_every: 1d, keep_full: 4 }\n    restore_from: { cluster: app, at: 2026-11-16T07:00:00Z }\n",
];

const TOKENS: [&str; 82] = [
    "&a ",
    "*a",
    "&b [*a, *a]",
    "<<: *a",
    "!!str ",
    "!x ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "|\n",
    ">-\n  x\n",
    "? ",
    ": ",
    "- ",
    "-",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
    "'",
    "#",
    "\t",
    "\r\n",
    "\r",
    "\n",
    "\n\n",
    "  ",
    "~",
    "null",
    "yes",
    "true",
    "0x10",
    "1e9",
    ".inf",
    "-1",
    "99999999999999999999",
    "3.6",
    "3.7.2",
    "1h30m",
    "8GiB",
    "127.0.0.1",
    "0.0.0.0",
    "members: 0\n",
    "members: []\n",
    "etcd:\n",
    "  main:\n",
    "fleet: x\n",
    "password: x",
    "key: |\n  x\n",
    "root_password: x\n",
    "flags: {name: x}\n",
    "version: 3.4.0\n",
    "v2_api: true\n",
    "quota: 0\n",
    "provider: aws\n",
    "token: t\n",
    "postgres:\n",
    "nodes: 0\n",
    "nodes: [{ name: a }]\n",
    "etcd: { endpoints: [] }\n",
    "etcd: main\n",
    "ttl: 4294967295\n",
    "safety_margin: -2147483648\n",
    "namespace: //\n",
    "master_start_timeout: 1\n",
    "mode: off\n",
    "é",
    "日本",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
    "\0",
    "\u{1b}[31m",
    "\u{202e}",
    "🦀",
    "e\u{301}",
    "\\",
    "\\x",
    "@",
    "`",
];

/// How long this thread has computed. What else runs on the computer, and keeps a thread waiting, does not count.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Small and the same everywhere: a failure is reproduced by its number alone.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides.max(1) as u64) as usize
    }
}

fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn mutate(text: &mut String, dice: &mut Dice) {
    let at = boundary(text, dice.roll(text.len() + 1).min(text.len()));
    match dice.roll(10) {
        0 => {
            let mut bytes = std::mem::take(text).into_bytes();
            if !bytes.is_empty() {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 << dice.roll(8);
            }
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        1 | 2 => text.insert_str(at, TOKENS[dice.roll(TOKENS.len())]),
        3 => {
            let end = boundary(text, (at + dice.roll(12)).min(text.len()));
            text.replace_range(at.min(end)..end, TOKENS[dice.roll(TOKENS.len())]);
        }
        4..=7 => {
            let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
            if lines.is_empty() {
                return;
            }
            let (a, b) = (dice.roll(lines.len()), dice.roll(lines.len()));
            match dice.roll(5) {
                0 => lines.insert(b, lines[a].clone()),
                1 => drop(lines.remove(a)),
                2 => lines.swap(a, b),
                3 => lines[a] = format!("{}{}", " ".repeat(dice.roll(5)), lines[a].trim_start_matches(' ')),
                _ => {
                    lines[a] = format!(
                        "{}\n",
                        lines[a].trim_end_matches(['\n', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 's', 'd'])
                    )
                }
            }
            *text = lines.concat();
        }
        8 => {
            let (open, depth) =
                ([("[", 1), ("{a: ", 1), ("- ", 1), ("? ", 1), ("a:\n ", 1)][dice.roll(5)].0, dice.roll(200));
            text.insert_str(at, &open.repeat(depth));
        }
        _ => text.truncate(at),
    }
}

fn document(number: u64) -> String {
    let mut dice = Dice::new(number);
    let mut text = SEEDS[dice.roll(SEEDS.len())].to_owned();
    for _ in 0..=dice.roll(6) {
        mutate(&mut text, &mut dice);
    }
    text
}

fn try_one(number: u64) -> Result<Duration, String> {
    let text = document(number);
    let start = computed();
    let run = || {
        let reading = read(&text);
        let shown = reading.render("raftsman.yaml", &text, number.is_multiple_of(8));
        assert_eq!(reading.spec.is_some(), reading.errors() == 0, "a spec means no errors");
        assert_eq!(shown.is_empty(), reading.diagnostics.is_empty(), "every diagnostic is shown");
        for (spec, cluster) in reading.spec.iter().flat_map(|spec| spec.postgres.values().map(move |one| (spec, one))) {
            let carried_out = spec.machines.provider == Provider::Local
                && (cluster.backups.is_none() && cluster.restore_from.is_none());
            assert!(carried_out, "no file passes with what this version does not carry out");
        }
        assert!(reading.timings.values().all(|timing| timing.pauses.len() >= 8), "a table has every case");
        let raw = shown.bytes().filter(|byte| *byte == 0 || *byte == b'\r').count();
        assert_eq!(raw, 0, "control characters stay out of the terminal");
        assert!(number.is_multiple_of(8) || !shown.contains('\u{1b}'), "escape sequences stay out of the terminal");
    };
    let outcome = catch_unwind(AssertUnwindSafe(run));
    let took = computed() - start;
    match outcome {
        Ok(()) if took < Duration::from_secs(1) => Ok(took),
        Ok(()) => Err(format!("document {number} took {took:?}:\n{text:?}")),
        Err(_) => Err(format!("document {number} panicked:\n{text:?}")),
    }
}

/// `RAFTSMAN_MUTATIONS` says how many documents, `RAFTSMAN_MUTATION` runs a single one.
#[test]
fn mutated() {
    if let Some(number) = std::env::var("RAFTSMAN_MUTATION").ok().and_then(|text| text.parse().ok()) {
        println!("{}", document(number));
        assert_eq!(try_one(number).map(|_| ()), Ok(()));
        return;
    }
    let total: u64 = std::env::var("RAFTSMAN_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get());
    let start = Instant::now();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            let mut slowest = Duration::ZERO;
            loop {
                let first = next.fetch_add(1000, Ordering::Relaxed);
                if first >= total || failures.len() > 5 {
                    return (failures, slowest);
                }
                for number in first..total.min(first + 1000) {
                    match try_one(number) {
                        Ok(took) => slowest = slowest.max(took),
                        Err(failure) => failures.push(failure),
                    }
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done: Vec<_> = workers.into_iter().filter_map(|worker| worker.join().ok()).collect();
        let slowest = done.iter().map(|(_, slowest)| *slowest).max();
        println!("{total} documents in {:?} on {threads} threads, the slowest {slowest:?}", start.elapsed());
        done.into_iter().flat_map(|(failures, _)| failures).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn hostile_shapes_are_answered_quickly() {
    let aliases: String = (0..30).map(|n| format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(10))).collect();
    let shapes = [
        "[".repeat(100_000),
        "{".repeat(100_000),
        "- ".repeat(50_000),
        "? ".repeat(50_000),
        "a: ".repeat(50_000),
        format!("a: {}", "[é, ".repeat(20)) + &"é, ".repeat(100_000),
        (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
        format!("x: &a0 [x]\n{aliases}").replace("*a-1,", "*a0,"),
        "a:b:".repeat(100_000),
        "é".repeat(500_000),
        "a: \"".to_owned() + &"x".repeat(1_000_000),
        "\n".repeat(1_000_000) + "x: [",
        "a: 1\n".repeat(100_000),
        format!("fleet: {}\n", "x".repeat(1_000_000)),
        "&a ".repeat(50_000),
        "#".repeat(1_000_000),
        "password: x\n".repeat(50_000) + "[",
        format!("{{{}", "password: x, ".repeat(50_000)),
    ];
    for text in shapes {
        let start = computed();
        let reading = read(&text);
        let shown = reading.render("raftsman.yaml", &text, false);
        let took = computed() - start;
        let sample: String = text.chars().take(20).collect();
        assert!(!shown.is_empty(), "{sample:?}");
        assert!(took < Duration::from_secs(2), "{sample:?}… took {took:?}");
        assert!(shown.len() < 200_000, "{sample:?}… gave {} bytes", shown.len());
    }
}
