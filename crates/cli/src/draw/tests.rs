#![allow(clippy::unwrap_used)]
use nowserving_line::{
    Change, LaneSettings, Lines, Op, Opening, Phase, Settings, SettingsPatch, Stamp,
};
use nowserving_protocol::event::{LineEvent, TokenEvent};

use super::*;

/// A line of two lanes, and the rows of its events as they are published.
struct Sale {
    lines: Lines,
    index: u64,
    rows: Vec<String>,
    last: [u64; 2],
}

fn shop() -> LineName {
    "shop".parse().unwrap()
}

impl Sale {
    /// Ten enter, one leaves and one is moved before it opens; one leaves and one enters during the draw.
    fn new() -> Sale {
        let limits = nowserving_line::Limits {
            work_max: 3,
            ..Default::default()
        };
        let mut sale = Sale {
            lines: Lines::with_limits(limits),
            index: 0,
            rows: Vec::new(),
            last: [0; 2],
        };
        let mut settings = Settings::new(2, 100);
        settings
            .lanes
            .push(LaneSettings::new("vip".parse().unwrap()));
        settings.opening = Opening::Draw;
        settings.draw_beacon = Some("7 12 40".to_owned());
        settings.phase = Phase::PreOpen;
        sale.apply(Op::Create {
            line: shop(),
            settings,
        });
        for lane in [
            "normal", "normal", "vip", "normal", "normal", "vip", "vip", "normal", "normal", "vip",
        ] {
            sale.enter(lane);
        }
        sale.leave(0, 2);
        sale.apply(Op::Move {
            line: shop(),
            lane: "vip".parse().unwrap(),
            token: 2,
            to: "normal".parse().unwrap(),
        });
        let incarnation = sale.incarnation();
        sale.apply(Op::SealDraw {
            line: shop(),
            incarnation,
            seed: nowserving_line::Secret([9; 32]),
        });
        let open = SettingsPatch {
            phase: Some(Change::Set(Phase::Open)),
            ..SettingsPatch::default()
        };
        sale.apply(Op::Configure {
            line: shop(),
            patch: open.into(),
            if_version: None,
            incarnation: None,
        });
        sale.leave(1, 4);
        sale.enter("vip");
        for _ in 0..20 {
            sale.apply(Op::RunBackground {
                line: shop(),
                incarnation,
            });
        }
        sale
    }

    fn incarnation(&self) -> u64 {
        self.lines.get(&shop()).unwrap().incarnation()
    }

    fn enter(&mut self, lane: &str) {
        self.apply(Op::Enter {
            line: shop(),
            key: None,
            lane: Some(lane.parse().unwrap()),
        });
    }

    fn leave(&mut self, lane: u8, token: u64) {
        let incarnation = self.incarnation();
        let at = nowserving_line::TokenRef {
            incarnation,
            lane,
            token,
        };
        self.apply(Op::Leave { line: shop(), at });
    }

    fn apply(&mut self, op: Op) {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.index,
            wall_ms: self.index,
        };
        let mut events = Vec::new();
        self.lines.apply(stamp, &op, Some(&mut events)).unwrap();
        for event in &events {
            let [tokens, lines] = &mut self.last;
            let row = match TokenEvent::new(event, *tokens) {
                Some(it) => {
                    *tokens = it.version;
                    serde_json::to_string(&it)
                }
                None => {
                    let it = LineEvent::new(event, *lines).unwrap();
                    *lines = it.version;
                    serde_json::to_string(&it)
                }
            };
            self.rows.push(row.unwrap());
        }
    }
}

fn verdict(rows: &[String], beacon: Option<&str>) -> (Verdict, String) {
    let mut archive = Archive::default();
    rows.iter().for_each(|row| archive.add(row.as_bytes()));
    let ((name, incarnation), events) = archive.lines.iter().next().unwrap();
    let check = Check::new(name, *incarnation, events, beacon);
    (check.verdict, check.text())
}

#[test]
fn a_draw_holds_by_its_events() {
    let sale = Sale::new();
    for beacon in [None, Some("7 12 40")] {
        let (verdict, text) = verdict(&sale.rows, beacon);
        assert_eq!(verdict, Verdict::Holds, "{text}");
        assert!(text.contains("9 took part"), "{text}");
    }
    let (verdict, text) = verdict(&sale.rows, Some("1 2 3"));
    assert_eq!(verdict, Verdict::DoesNotHold, "{text}");
}

#[test]
fn no_number_of_a_draw_counts_as_missing() {
    let sale = Sale::new();
    let mut archive = Archive::default();
    sale.rows.iter().for_each(|row| archive.add(row.as_bytes()));
    let ((name, incarnation), events) = archive.lines.iter().next().unwrap();
    assert_eq!(gaps::missing_numbers(name, *incarnation, events), []);
    assert_eq!(gaps::of_line(name, *incarnation, events), []);
}

/// Without one event it cannot tell, unless the digest says all the same who took part.
#[test]
fn with_a_gap_it_cannot_tell() {
    let sale = Sale::new();
    let drawn = sale
        .rows
        .iter()
        .position(|row| row.contains("\"drawn\""))
        .unwrap();
    for lost in 0..=drawn {
        let mut rows = sale.rows.clone();
        let row = rows.remove(lost);
        let (found, text) = verdict(&rows, None);
        let is_known_by_the_digest = ["created", "phase", "entered"]
            .iter()
            .any(|event| row.contains(&format!("\"event\":\"{event}\"")));
        match is_known_by_the_digest {
            true => assert_ne!(found, Verdict::DoesNotHold, "{row}: {text}"),
            false => assert_eq!(found, Verdict::CannotTell, "{row}: {text}"),
        }
    }
    let without_tokens: Vec<String> = sale
        .rows
        .iter()
        .filter(|row| !row.contains("\"token\""))
        .cloned()
        .collect();
    assert_eq!(verdict(&without_tokens, None).0, Verdict::CannotTell);
    let one_entered = sale
        .rows
        .iter()
        .position(|row| row.contains("\"entered\""))
        .unwrap();
    let mut rows = sale.rows.clone();
    rows.remove(one_entered);
    assert_eq!(
        verdict(&rows, None).0,
        Verdict::Holds,
        "numbers have no gaps"
    );
}

#[test]
fn a_draw_that_was_tampered_with_does_not_hold() {
    let sale = Sale::new();
    let swap = |from: &str, to: &str| {
        let rows: Vec<String> = sale.rows.iter().map(|row| row.replace(from, to)).collect();
        assert_ne!(rows, sale.rows, "{from}");
        verdict(&rows, None)
    };
    let seed = "09".repeat(32);
    let (other, text) = swap(&seed, &"08".repeat(32));
    assert_eq!(other, Verdict::DoesNotHold, "{text}");
    let (other, text) = swap("7 12 40", "7 12 41");
    assert_eq!(other, Verdict::DoesNotHold, "{text}");
    let (other, text) = swap("\"took_part\":9", "\"took_part\":8");
    assert_eq!(other, Verdict::DoesNotHold, "{text}");
    // Two of a lane have each other's number.
    let moved: Vec<usize> = (0..sale.rows.len())
        .filter(|at| {
            sale.rows[*at].contains("\"by\":\"draw\"")
                && sale.rows[*at].contains("\"lane\":\"vip\"")
        })
        .collect();
    let mut rows: Vec<serde_json::Value> = sale
        .rows
        .iter()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let first = rows[moved[0]]["to_token"].clone();
    rows[moved[0]]["to_token"] = rows[moved[1]]["to_token"].clone();
    rows[moved[1]]["to_token"] = first;
    let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
    let (other, text) = verdict(&rows, None);
    assert_eq!(other, Verdict::DoesNotHold, "{text}");
}

/// The result could have been chosen.
#[test]
fn a_second_commitment_does_not_hold_and_a_late_one_proves_nothing() {
    let sale = Sale::new();
    let at = sale
        .rows
        .iter()
        .position(|row| row.contains("draw_sealed"))
        .unwrap();
    let mut sealed: serde_json::Value = serde_json::from_str(&sale.rows[at]).unwrap();
    let version = sealed["version"].as_u64().unwrap();
    let (mut twice, mut late) = (sale.rows.clone(), sale.rows.clone());
    // In the place of one that enters, so that no version is new.
    let entered = twice
        .iter()
        .position(|row| row.contains("\"entered\""))
        .unwrap();
    let first: serde_json::Value = serde_json::from_str(&twice[entered]).unwrap();
    sealed["version"] = first["version"].clone();
    sealed["commitment"] = "00".into();
    twice.push(sealed.to_string());
    let (other, text) = verdict(&twice, None);
    assert_eq!(other, Verdict::DoesNotHold, "{text}");
    assert!(text.contains("2 seeds"), "{text}");
    let mut phase = sealed.clone();
    phase["version"] = (version - 1).into();
    phase["event"] = "phase".into();
    phase["phase"] = "open".into();
    late.push(phase.to_string());
    let (other, text) = verdict(&late, None);
    assert_eq!(other, Verdict::CannotTell, "{text}");
    assert!(text.contains("was open before"), "{text}");
}
