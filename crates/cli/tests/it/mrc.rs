//! `pagetide mrc`: sizes, samples, what a hit ratio takes, and what is written.

use crate::{BIN, failure, json, pagetide, path, sample, written};
use serde_json::Value;
use std::process::Command;

fn run(args: &[&str]) -> Vec<Value> {
    let sample = sample();
    json(&[&["mrc", &sample, "--json"], args].concat())
}

fn text(args: &[&str]) -> String {
    let output = pagetide(args);
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn points_spread_sizes_from_sixteen_pages_to_all() {
    let points = run(&["--policy", "lru,gated-2q,default", "--points", "5"]);
    let frames: Vec<u64> = points
        .iter()
        .map(|point| point["frames"].as_u64().unwrap())
        .collect();
    let sizes = [16, 97, 584, 3532, 21_349];
    assert_eq!(frames, [sizes, sizes].concat(), "each policy once");
    assert_eq!(points[4]["misses"], 21_349, "each page once");
}

#[test]
fn a_target_is_met_by_the_size_that_is_named_and_by_none_below() {
    let lines = run(&["--policy", "fifo,lru", "--target", "35%", "--points", "6"]);
    let (points, needed) = lines.split_at(12);
    for one in needed {
        let of = |name: &str| one[name].as_u64().unwrap();
        assert_eq!(of("bytes"), of("frames") * 4096);
        let policy = one["policy"].as_str().unwrap();
        let sizes = format!("{},{}", of("more_than_frames"), of("frames"));
        let ratios = run(&["--policy", policy, "--frames", &sizes]);
        let hits = |at: usize| 1.0 - ratios[at]["miss_ratio"].as_f64().unwrap();
        assert!(hits(0) < 0.35 && hits(1) >= 0.35, "{policy}: {ratios:?}");
        assert!((one["hit_ratio"].as_f64().unwrap() - hits(1)).abs() < 2e-6);
    }
    // LRU's curve has all sizes, others those that were computed.
    assert!(
        points
            .iter()
            .any(|point| point["frames"] == needed[0]["frames"])
    );
    assert_eq!(
        needed[1]["frames"].as_u64().unwrap(),
        needed[1]["more_than_frames"].as_u64().unwrap() + 1
    );
}

#[test]
fn a_target_is_met_by_exactly_as_many_hits() {
    for (pages, again, target) in [(1, 999, "99.9%"), (9, 1, "10%"), (45, 55, "55%")] {
        let mut text: Vec<String> = (1..=pages).map(|page| page.to_string()).collect();
        text.extend(vec![pages.to_string(); again]);
        let trace = written(text.join("\n").as_bytes());
        let args = ["--policy", "fifo,lru", "--frames", "1", "--target", target];
        let lines = json(&[&["mrc", path(&trace), "--json"], &args[..]].concat());
        for needed in &lines[2..] {
            assert_eq!(needed["frames"], 1, "{needed}");
        }
    }
}

#[test]
fn a_target_that_no_size_meets_is_said_to_be_out_of_reach() {
    let needed = run(&["--policy", "fifo,lru", "--target", "0.95", "--points", "3"]);
    for one in &needed[6..] {
        assert_eq!(one["frames"], Value::Null);
        assert_eq!(one["more_than_frames"], 21_349);
    }
    let sample = sample();
    let shown = text(&["mrc", &sample, "--policy", "lru", "--target", "95%"]);
    assert!(shown.contains("no policy has more than 91.46 %"), "{shown}");
    assert!(shown.contains("not found"), "{shown}");
}

#[test]
fn a_target_needs_no_sizes_of_a_small_trace() {
    for (pages, frames) in [("1\n1\n", 1), ("1\n2\n1\n2\n", 2)] {
        let trace = written(pages.as_bytes());
        let args = ["--policy", "lru,fifo", "--target", "50%", "--json"];
        let lines = json(&[&["mrc", path(&trace)], &args[..]].concat());
        let needed = &lines[lines.len() - 2..];
        for one in needed {
            assert_eq!(one["target_hit_ratio"], 0.5, "{one}");
            assert_eq!(one["frames"], frames, "{one}");
        }
    }
}

#[test]
fn samples_tell_the_ratio_and_how_far_off_it_may_be() {
    let sizes = ["--policy", "lru,fifo", "--frames", "1000,8000"];
    let exact = run(&sizes);
    let sampled = run(&[&sizes[..], &["--sample", "10%"]].concat());
    for (exact, sampled) in exact.iter().zip(&sampled) {
        assert_eq!(exact["requests"], sampled["requests"]);
        assert_eq!(exact.get("miss_ratio_error"), None);
        let ratio = |point: &Value, name: &str| point[name].as_f64().unwrap();
        let error = ratio(sampled, "miss_ratio_error");
        let off = (ratio(exact, "miss_ratio") - ratio(sampled, "miss_ratio")).abs();
        assert!(error > 0.0 && error < 0.03, "{sampled}");
        assert!(off < 3.0 * error + 0.01, "{exact} {sampled}");
    }
}

#[test]
fn csv_has_a_line_a_point_and_a_plot_a_curve_a_policy() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("curves.svg");
    let sample = sample();
    let args = ["mrc", &sample, "--policy", "lru,arc", "--points", "4"];
    let more = ["--csv", "--plot", plot.to_str().unwrap()];
    let csv = text(&[&args[..], &more[..]].concat());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 9);
    let header = "trace,policy,frames,requests,misses,miss_ratio,miss_ratio_error";
    assert_eq!(lines[0], header);
    assert!(lines[4].starts_with("rec_pg,lru,21349,250062,21349,0.085375,"));
    let svg = std::fs::read_to_string(plot).unwrap();
    for text in [">\nlru\n<", ">\narc\n<", "memory for pages", "miss ratio"] {
        assert!(svg.contains(text), "{text} is not in the plot");
    }
    // Two curves, their two lines in the legend, two axes at least.
    assert!(svg.matches("<polyline").count() >= 6);
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    let sample = sample();
    let few = written(b"1\n2\n1\n");
    for (args, text) in [
        (
            &["--sample", "1%", "--frames", "100"][..],
            "of 1600 and more",
        ),
        (&["--sample", "30%"], "from 0.000001 to 0.125"),
        (&["--target", "95"], "as in 95% or 0.95"),
        (&["--target", "0%"], "as in 95% or 0.95"),
        (&["--points", "3", "--frames", "9"], "cannot be used with"),
        (&["--csv", "--json"], "cannot be used with"),
        (&["--csv", "--target", "50%"], "cannot be used with"),
    ] {
        let (code, message) = failure(&[&["mrc", &sample], args].concat());
        assert_eq!(code, 2, "{args:?}: {message}");
        assert!(message.contains(text), "{args:?}: {message}");
    }
    let (code, message) = failure(&["mrc", path(&few), "--points", "3"]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("too few"), "{message}");
    let (code, message) = failure(&["mrc", &sample, "--plot", "/nonexistent/a.svg"]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("/nonexistent/a.svg"), "{message}");
}

#[test]
fn a_plot_goes_where_a_link_leads_though_nothing_is_there_yet() {
    let dir = tempfile::tempdir().unwrap();
    let (link, plot) = (dir.path().join("link.svg"), dir.path().join("plot.svg"));
    std::os::unix::fs::symlink(&plot, &link).unwrap();
    let args = [
        "mrc",
        &sample(),
        "--frames",
        "9000",
        "--plot",
        link.to_str().unwrap(),
    ];
    assert!(pagetide(&args).status.success());
    assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
    // What cannot be read later leaves nothing there.
    std::fs::remove_file(&plot).unwrap();
    failure(&["mrc", "/nonexistent", "--plot", link.to_str().unwrap()]);
    assert!(!plot.exists() && std::fs::symlink_metadata(&link).is_ok());
}

#[test]
fn a_sample_with_hardly_a_page_is_refused() {
    for (nr_pages, told) in [
        (50, "has 50 distinct pages, too few for samples"),
        (
            200,
            "of 200 pages: it has to have 16 pages to say anything, a rate of 0.08",
        ),
    ] {
        let pages = (0..2).flat_map(|_| 1..=nr_pages);
        let pages: Vec<String> = pages.map(|page| page.to_string()).collect();
        let trace = written(pages.join("\n").as_bytes());
        let args = ["--sample", "0.1%", "--frames", "16000"];
        let (code, message) = failure(&[&["mrc", path(&trace)], &args[..]].concat());
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn results_are_printed_where_the_plot_cannot_be_written() {
    let sample = sample();
    let args = ["mrc", &sample, "--policy", "lru, fifo", "--frames", "100"];
    let output = pagetide(&[&args[..], &["--plot", "/dev/full"]].concat());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.contains("| lru ") && printed.contains("| fifo "),
        "{printed}"
    );
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("cannot write /dev/full"), "{message}");
}

#[test]
fn a_name_cannot_move_the_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("a\u{1b}[2Jb.txt");
    std::fs::write(&trace, "1\n2\n1\n").unwrap();
    let trace = trace.to_str().unwrap();
    let shown = text(&["mrc", trace, "--frames", "1", "--policy", "lru"]);
    assert!(shown.contains("a\\u{1b}[2Jb"), "{shown}");
    std::fs::write(trace, "").unwrap();
    let (_, message) = failure(&["mrc", trace]);
    assert!(message.contains("a\\u{1b}[2Jb.txt is empty"), "{message}");
}

#[test]
fn a_target_and_its_bound_are_not_rounded_up() {
    // Two pages are missed of 200,000.
    let trace = written(format!("1\n2\n{}", "1\n".repeat(199_998)).as_bytes());
    let args = ["--policy", "lru", "--frames", "1", "--target", "99.9995%"];
    let shown = text(&[&["mrc", path(&trace)], &args[..]].concat());
    for words in ["hit ratio of 99.9995 %", "more than 99.9990 %"] {
        assert!(shown.contains(words), "{words} is not in {shown}");
    }
}

#[test]
fn a_plot_for_which_there_is_no_room_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let [there, new] = ["there.svg", "new.svg"].map(|name| dir.path().join(name));
    std::fs::write(&there, "an older plot").unwrap();
    for plot in [&there, &new] {
        // A limit on file size fails a write half-way, as a full disk does.
        let script = r#"ulimit -f 1; exec "$0" mrc "$1" --frames 100 --policy lru --plot "$2""#;
        let run = Command::new("sh")
            .args(["-c", script, BIN, &sample()])
            .arg(plot)
            .output()
            .unwrap();
        let message = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{message}");
        let told = format!("cannot write {}: ", plot.display());
        assert!(message.contains(&told), "{message}");
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "an older plot");
    assert!(!new.exists(), "half a plot is left");
}
