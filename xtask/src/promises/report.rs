//! The figures as a table for people and as JSON for whoever keeps them.

use super::{contender::Figure, goals::Verdict, start::BWRAP};
use crate::workspace;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::{fs, thread};

/// Prints both tables.
pub(crate) fn print(figures: &[Figure], verdicts: &[Verdict]) {
    println!("\n{:12} {:34} {:>10} {:12} X BUBBLEWRAP", "MEASURE", "OF", "MEDIAN", "UNIT");
    for figure in figures {
        let Figure { measure, name, unit, median } = figure;
        match median {
            Ok(value) => {
                println!("{measure:12} {name:34} {value:>10.2} {unit:12} {}", ratio(figure, figures))
            }
            Err(why) => println!("{measure:12} {name:34} {:>10} {why}", "-"),
        }
    }
    println!("\n{:70} {:>9} VERDICT", "GOAL", "MEASURED");
    for verdict in verdicts {
        let measured = verdict.measured.map_or("-".into(), |value| format!("{value:.3}"));
        println!("{:70} {measured:>9} {}", verdict.goal, word(verdict.met));
    }
}

/// Writes `promises.json` into cargo's target directory.
pub(crate) fn write(figures: &[Figure], verdicts: &[Verdict], rounds: usize) -> Result<()> {
    let document = json!({
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "architecture": std::env::consts::ARCH,
        "processors": thread::available_parallelism().map_or(0, usize::from),
        "rounds": rounds,
        "figures": figures.iter().map(figure).collect::<Vec<Value>>(),
        "goals": verdicts.iter().map(verdict).collect::<Vec<Value>>(),
    });
    let path = workspace::target()?.join("promises.json");
    fs::write(&path, format!("{document:#}\n"))
        .with_context(|| format!("could not write {}", path.display()))?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

fn figure(figure: &Figure) -> Value {
    json!({
        "measure": figure.measure,
        "of": figure.name,
        "unit": figure.unit,
        "median": figure.median.as_ref().ok(),
        "note": figure.median.as_ref().err(),
    })
}

fn verdict(verdict: &Verdict) -> Value {
    json!({ "goal": verdict.goal, "measured": verdict.measured, "verdict": word(verdict.met) })
}

fn word(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "ok",
        Some(false) => "over",
        None => "not measured",
    }
}

/// The figure in terms of bubblewrap's in the same measurement, where that was made.
fn ratio(figure: &Figure, figures: &[Figure]) -> String {
    let peer = figures.iter().find(|peer| peer.measure == figure.measure && peer.name == BWRAP);
    let ratio =
        peer.zip(figure.median.as_ref().ok()).and_then(|(peer, own)| Some(own / peer.median.as_ref().ok()?));
    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
}
