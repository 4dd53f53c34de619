use nowserving_rehearse::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut c = if args[1] == "poc" { Config::poc() } else { Config::steady() };
    for a in &args[2..] {
        let (k, v) = a.split_once('=').unwrap();
        match k {
            "seed" => c.seed = v.parse().unwrap(),
            "watch" => c.crowd.watch_percent = v.parse().unwrap(),
            "told" => c.crowd.polls = Polls::Told,
            "naive" => c.compare_naive = true,
            _ => panic!(),
        }
    }
    let t = std::time::Instant::now();
    let r = run(&c, |_| {}).unwrap();
    println!("{}", serde_json::to_string(&r.summary()).unwrap());
    eprintln!("{:?}", t.elapsed());
}
