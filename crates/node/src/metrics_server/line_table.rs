//! The part of the table about lines, lanes and labels.

use super::table::{OFF_RATIOS, Process, Section, WAIT_SECONDS, counter, gauge, histogram};

pub const LINES: Section = Section {
    title: "Lines",
    about: "Only the leader of a line's shard has these, so a sum over all nodes counts each line once. The 50 \
        lines with the most tokens (waiting or with a seat) of those that a node leads have series of their own; \
        the others are together in `line=\"(others)\"`, as far as that makes sense. A counter of this section or \
        the next has what happened while this node led the line and, in a series of its own, while the line was one \
        of the 50. So each event is in one series of one node, and `sum by (line) \
        (increase(nowserving_line_entered_total[30m]))` is right over changes of leaders, also back and forth; the \
        counts of the line's whole life are in `nowserving line show`. What happens between a scrape and the end of \
        the node, of its lead or of the line (the departures by its deletion, too) is in no series, and `increase` does not see what a new series begins with. A \
        series falls only if its line was not among the 50 for long (200 such are remembered): it begins at 0 then, \
        as after a start. A node reads its lines about once a second, a hundred thousand of them in \
        five seconds, and those of a shard in which nothing happens each \
        ten seconds, or each minute if they are many. What time alone changes, such as an ETA, can be as old.",
    of: Process::Node,
    written: true,
    metrics: &[
        gauge("nowserving_line_waiting", &["line"], "Waiting tokens."),
        gauge(
            "nowserving_line_admitted",
            &["line"],
            "Tokens with a seat that they have not claimed.",
        ),
        gauge(
            "nowserving_line_in_checkout",
            &["line"],
            "Tokens with a seat that they have claimed.",
        ),
        gauge(
            "nowserving_line_seats",
            &["line"],
            "Seats in force: as a backend has told, else as the setting says.",
        ),
        gauge(
            "nowserving_line_queue_limit",
            &["line"],
            "The setting queue_limit. Not for (others).",
        ),
        gauge(
            "nowserving_line_room",
            &["line"],
            "How many more newcomers the default lane takes before one is refused with line_full: as far as seats + queue_limit exceed the live tokens, and a queue_limit of the lane leaves room. A quota can refuse sooner, with sold_out. No sample while the gate holds nobody back, or the phase takes no newcomers. Not for (others).",
        ),
        gauge(
            "nowserving_line_full",
            &["line"],
            "1 if the line refuses newcomers of the default lane with line_full now, else 0. Not for (others).",
        ),
        gauge(
            "nowserving_line_newcomer_eta_seconds",
            &["line"],
            "The eta_ms of one who enters the default lane now; no sample while it is unknown. Not for (others).",
        ),
        gauge(
            "nowserving_line_phase",
            &["line", "phase"],
            "1, with the line's phase. Not for (others).",
        ),
        gauge(
            "nowserving_line_held_back",
            &["line", "by"],
            "1, with what keeps the next waiting token from being admitted, as held_back_by says. Not for (others).",
        ),
        gauge(
            "nowserving_line_gate",
            &["line", "gate"],
            "1, with the setting gate: on, or shadow or off, with which the line holds nobody back. Not for (others).",
        ),
        counter(
            "nowserving_line_entered_total",
            &["line"],
            "Tokens that entered. A moved token counts once.",
        ),
        counter(
            "nowserving_line_gone_total",
            &["line", "reason"],
            "Tokens that are gone, by reason; moved: they became tokens of another lane.",
        ),
        counter(
            "nowserving_line_refused_total",
            &["line", "reason"],
            "Entrants who were refused, by error code.",
        ),
        counter(
            "nowserving_line_shadow_total",
            &["line", "outcome"],
            "While the gate is shadow: tokens admitted, those of them that would have waited (held_back), and those of these that would have been refused.",
        ),
        counter(
            "nowserving_line_forecasts_total",
            &["line", "outcome"],
            "Tokens that were given a measured ETA and have been admitted (judged), and those of them that waited no longer than eta_p90_ms (p90_covered): nine in ten, if forecasts are good.",
        ),
        histogram(
            "nowserving_wait_seconds",
            WAIT_SECONDS,
            &["line"],
            "Time from entering to admission, of admitted tokens.",
        ),
        histogram(
            "nowserving_forecast_off_ratio",
            OFF_RATIOS,
            &["line"],
            "How far the ETA that a token was given on entering was off its true wait, as a part of that wait. Without a sum.",
        ),
    ],
};

pub const LANES_AND_LABELS: Section = Section {
    title: "Lanes and labels",
    about: "Also of lines that the node leads. Lanes have gauges in the lines above (a line has 8 at most); all lanes of \
        other lines are together in `line=\"(others)\", lane=\"(others)\"`. Lanes have counters and histograms only in lines \
        with more than one, as the line's own are the same otherwise, and at most 100 lanes have them: those of the \
        busiest of these lines. All lines whose lanes have none are in `(others)`, so that a sum over lanes is that \
        over lines. Labels are those of the setting `labels`; the 50 pairs of name and value with the most tokens have \
        series of their own, the other values of a name that is among them are in `value=\"(others)\"`, and those of \
        other names in `label=\"(others)\", value=\"(others)\"`, where a line with several labels counts once for each. \
        What happens counts for the labels that the line has at the next scrape.",
    of: Process::Node,
    written: true,
    metrics: &[
        gauge(
            "nowserving_lane_waiting",
            &["line", "lane"],
            "Waiting tokens in the lane.",
        ),
        gauge(
            "nowserving_lane_admitted",
            &["line", "lane"],
            "Tokens of the lane with a seat that they have not claimed.",
        ),
        gauge(
            "nowserving_lane_in_checkout",
            &["line", "lane"],
            "Tokens of the lane with a seat that they have claimed.",
        ),
        gauge(
            "nowserving_lane_queue_limit",
            &["line", "lane"],
            "The lane's own queue_limit; no sample if it has none. Not for (others).",
        ),
        gauge(
            "nowserving_lane_room",
            &["line", "lane"],
            "How many more newcomers the lane takes before one is refused with line_full, because the lane or the line is full. Only for lanes with a queue_limit of their own, and as nowserving_line_room.",
        ),
        counter(
            "nowserving_lane_entered_total",
            &["line", "lane"],
            "Newcomers that entered the lane. A token that is moved into it does not count.",
        ),
        counter(
            "nowserving_lane_gone_total",
            &["line", "lane", "reason"],
            "Tokens of the lane that are gone, by reason; moved: they became tokens of another lane.",
        ),
        counter(
            "nowserving_lane_refused_total",
            &["line", "lane", "reason"],
            "Entrants into the lane who were refused, by error code. Entrants that named a lane which the line does not have are in (others).",
        ),
        histogram(
            "nowserving_lane_wait_seconds",
            WAIT_SECONDS,
            &["line", "lane"],
            "As nowserving_wait_seconds, for the lane from which the token was admitted.",
        ),
        histogram(
            "nowserving_lane_forecast_off_ratio",
            OFF_RATIOS,
            &["line", "lane"],
            "As nowserving_forecast_off_ratio, for the lane from which the token was admitted.",
        ),
        gauge(
            "nowserving_label_lines",
            &["label", "value"],
            "Lines with this label.",
        ),
        gauge(
            "nowserving_label_waiting",
            &["label", "value"],
            "Waiting tokens in lines with this label.",
        ),
        gauge(
            "nowserving_label_admitted",
            &["label", "value"],
            "Tokens with a seat that they have not claimed, in lines with this label.",
        ),
        gauge(
            "nowserving_label_in_checkout",
            &["label", "value"],
            "Tokens with a seat that they have claimed, in lines with this label.",
        ),
        gauge(
            "nowserving_label_seats",
            &["label", "value"],
            "Seats in force in lines with this label.",
        ),
        gauge(
            "nowserving_label_over_seats",
            &["label", "value"],
            "Seats held beyond those in force, in lines with this label: where the gate is shadow or off, as many would wait.",
        ),
        counter(
            "nowserving_label_entered_total",
            &["label", "value"],
            "As nowserving_line_entered_total, in lines with this label.",
        ),
        counter(
            "nowserving_label_gone_total",
            &["label", "value", "reason"],
            "As nowserving_line_gone_total, in lines with this label.",
        ),
        counter(
            "nowserving_label_refused_total",
            &["label", "value", "reason"],
            "As nowserving_line_refused_total, in lines with this label.",
        ),
        histogram(
            "nowserving_label_wait_seconds",
            WAIT_SECONDS,
            &["label", "value"],
            "As nowserving_wait_seconds, in lines with this label.",
        ),
        histogram(
            "nowserving_label_forecast_off_ratio",
            OFF_RATIOS,
            &["label", "value"],
            "As nowserving_forecast_off_ratio, in lines with this label.",
        ),
    ],
};

pub const FULL_AND_HELD_BACK: Section = Section {
    title: "Full lines, and lines that wait",
    about: "Of all lines that the node leads, also those without series of their own.",
    of: Process::Node,
    written: true,
    metrics: &[
        gauge(
            "nowserving_lines_full",
            &[],
            "Lines that refuse newcomers of the default lane with line_full now.",
        ),
        gauge(
            "nowserving_lines_held_back",
            &["by"],
            "Lines in which somebody waits, by what keeps the next token from being admitted, as held_back_by says.",
        ),
    ],
};
