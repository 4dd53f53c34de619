use nowserving_rehearse::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut c = if args[1] == "poc" {
        Config::poc()
    } else {
        Config::steady()
    };
    for a in &args[2..] {
        let (k, v) = a.split_once('=').unwrap();
        match k {
            "seed" => c.seed = v.parse().unwrap(),
            "watch" => c.crowd.watch_percent = v.parse().unwrap(),
            "told" => c.crowd.polls = Polls::Told,
            "naive" => c.compare_naive = true,
            "seats" => c.settings.seats = v.parse().unwrap(),
            "idle" => c.settings.waiting_idle_timeout_ms = v.parse().unwrap(),
            "early" => c.crowd.early_percent = v.parse().unwrap(),
            "giveup" => c.crowd.give_up_per_poll_percent = v.parse().unwrap(),
            "service" => {
                let (m, s) = v.split_once(',').unwrap();
                c.crowd.service = Service::LogNormal {
                    median_ms: m.parse().unwrap(),
                    sigma: s.parse().unwrap(),
                }
            }
            "patience" => c.crowd.patience_mean_ms = Some(v.parse().unwrap()),
            "vanish" => c.crowd.vanish_percent = v.parse().unwrap(),
            "lanes" => {
                for (i, w) in v.split(',').enumerate() {
                    let (b, m) = w.split_once(':').unwrap();
                    let mut l = nowserving_line::LaneSettings::new(
                        nowserving_line::LaneName::try_from(format!("l{i}").as_str()).unwrap(),
                    );
                    l.absolute = b == "a";
                    l.boost_ms = b.parse().unwrap_or(0);
                    if i == 0 {
                        c.settings.lanes.clear();
                    }
                    c.settings.lanes.push(l);
                    c.crowd.lane_mix.push(m.parse().unwrap());
                }
            }
            "rate" => {
                let (m, s) = v.split_once(',').unwrap();
                c.settings.admission_rate = Some(nowserving_line::AdmissionRate {
                    per_second_micro: m.parse().unwrap(),
                    burst: s.parse().unwrap(),
                });
            }
            "n" => c.crowd.shoppers = v.parse().unwrap(),
            _ => panic!(),
        }
    }
    let t = std::time::Instant::now();
    let r = run(&c, |_| {}).unwrap();
    if std::env::var("CSV").is_ok() {
        println!("{}", r.csv());
        return;
    }
    if let Ok(f) = std::env::var("HTML") {
        std::fs::write(f, r.html().unwrap()).unwrap();
    }
    println!("{}", serde_json::to_string(&r.summary()).unwrap());
    eprintln!("{:?}", t.elapsed());
}
