//! Files of 5,000 and 10,000 clusters → reading time that grows with the file, and no faster.
//!
//! A test binary of its own, so that no other test runs beside it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test reads its samples, keeps the time and prints; core itself must not"
)]
#![allow(clippy::print_stdout)] // Timings, shown with --nocapture.

use std::time::{Duration, Instant};

use raftsman_core::spec::{Reading, read};

fn fleet(clusters: usize) -> String {
    let mut text = "fleet: shop\netcd:\n".to_owned();
    for number in 1..=clusters {
        text += &format!(
            "  cluster-{number}:\n    members:\n      - name: c{number}-a\n      - name: c{number}-b\n      - name: c{number}-c\n    version: 3.6.15\n    quota: 4GiB\n    timers: {{ heartbeat: 100ms, election: 1s }}\n    certificates:\n      validity: 60d\n      renew_before: 20d\n"
        );
    }
    text
}

/// How long it takes to read these files, whose readings are all kept until the end: the memory that a file needs is
/// then new to the process in both cases, and what a machine asks for fresh pages counts on both sides.
fn time(texts: &[String], check: impl Fn(&Reading)) -> Duration {
    let start = Instant::now();
    let readings: Vec<_> = texts
        .iter()
        .map(|text| {
            let reading = read(text);
            let shown = reading.render("raftsman.yaml", text, false);
            (reading, shown)
        })
        .collect();
    let took = start.elapsed();
    readings.iter().for_each(|(reading, _)| check(reading));
    took
}

/// One file of 10,000 clusters may take a fifth longer than two of 5,000: more means that something is not linear, for
/// what grows with the square takes twice as long. Both sizes are beyond any cache, so that caches do not count either.
/// Medians of runs that take turns, and three tries, because the machine may have other things to do.
fn assert_linear(what: &str, text: impl Fn(usize) -> String, check: impl Fn(&Reading)) {
    let small = [text(5_000), text(5_000)];
    let large = [text(10_000)];
    let mut ratio = f64::MAX;
    for _ in 0..3 {
        let (mut a, mut b): (Vec<_>, Vec<_>) = (0..5).map(|_| (time(&small, &check), time(&large, &check))).unzip();
        a.sort();
        b.sort();
        ratio = b[2].as_secs_f64() / a[2].as_secs_f64();
        println!("{what}: two files of 5,000 clusters {:?}, one of 10,000 {:?}, ratio {ratio:.2}", a[2], b[2]);
        if ratio <= 1.2 {
            return;
        }
    }
    panic!("{what}: ratio {ratio:.2}");
}

#[test]
fn scale() {
    let listed = |errors, warnings| {
        move |reading: &Reading| assert_eq!((reading.errors(), reading.warnings()), (errors, warnings))
    };
    assert_linear("clean", fleet, listed(0, 0));
    assert_linear(
        "an error in each",
        |clusters| fleet(clusters).replace("renew_before: 20d", "renew_befor: 20d"),
        listed(51, 0),
    );
    assert_linear(
        "a warning in each",
        |clusters| fleet(clusters).replace("quota: 4GiB", "quota: 40GiB"),
        listed(0, 51),
    );
    assert_linear(
        "one error at the end",
        |clusters| fleet(clusters) + "  last: { members: 3, quota: 8G }\n",
        listed(1, 0),
    );
    assert_linear("not YAML at the end", |clusters| fleet(clusters) + "  last: [\n", listed(1, 0));
}
