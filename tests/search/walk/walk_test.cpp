#include "search/walk/walk.h"
#include "data/read/library.h"
#include "search/space/default_space.h"
#include "tests/search/brute_force.h"
#include "tests/search/jobs.h"
#include "tests/search/results.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace shardplan {

namespace {

TEST_CASE("bounds change no answer, whatever the profile") {
  const Library library;
  std::mt19937_64 random(19);
  std::map<std::string, std::int64_t> cut;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const std::vector<std::string> names = library.framework_names();
    Job job = random_small_job(random);
    job.profile = library.framework(names[static_cast<std::size_t>(round) % names.size()]);
    job.profile.allocator = AllocatorKind::kStaticArenas;  // its replay says nothing here
    CAPTURE(job.profile.name);
    const SearchSpace space = random_small_space(job, random);
    SearchOptions options = {
        .memory_threshold = 0.8, .top = 3, .cuts = Cuts::kNone, .pareto = true};
    const SearchResult roomy = search_plans(job, space, options);
    if (roomy.top.empty()) {
      continue;
    }
    job.cluster.memory_limit_bytes = 2 * roomy.top.front().price.allocated_bytes;
    const SearchResult whole = search_plans(job, space, options);
    options.cuts = Cuts::kAll;
    const SearchResult bounded = search_plans(job, space, options);
    CHECK(same_top(whole, bounded));
    CHECK(std::ranges::equal(whole.pareto, bounded.pareto, {}, &ParetoPoint::plan,
                             &ParetoPoint::plan));
    CHECK(bounded.plans_priced + plans_of_kind(bounded, "cut: ") == whole.plans_priced);
    options.pareto = false;
    const SearchResult fastest = search_plans(job, space, options);
    CHECK(same_top(whole, fastest));
    cut[job.profile.name] += plans_of_kind(fastest, "cut: ");
  }
  for (const auto& [name, plans] : cut) { MESSAGE(name, ": ", plans, " plans cut"); }
  CHECK(cut.size() > 4);
}

TEST_CASE("the top is found however many undecided plans that do not fit are faster") {
  // Tensors of a few MB and hundreds of MiB beside them: the bounds leave every plan open.
  Job job = llama_8b_job();
  job.model.layers.resize(2);
  job.model.hidden = 256;
  job.model.ffn = 512;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 4;
  job.model.head_dim = 64;
  job.model.vocab = 1024;
  job.cluster.gpus_per_node = 2;
  job.cluster.nvlink_domain = 2;
  job.sequence_length = 1024;
  job.global_batch = 8;
  // The more of the optimizer lies on the host, the smaller and slower is a plan.
  SearchSpace space = wide_space(job);
  space.tp = {1};
  space.pp = {1};
  space.cp = {1};
  space.vpp = {1};
  space.zero = {1};
  space.dp_replicate = {1};
  space.micro_batch = {1};
  space.precision = {Precision::kBf16};
  space.recompute = {Recompute{}};
  space.rank_order.resize(1);
  space.offload.clear();
  constexpr int kShares = 600;
  for (int share = 0; share <= kShares; ++share) {
    space.offload.push_back({.optimizer = static_cast<double>(share) / kShares});
  }
  for (const MemoryBasis basis :
       {MemoryBasis::kReserved, MemoryBasis::kRequired, MemoryBasis::kDeviceUsed}) {
    const BruteForce brute = brute_force(job, space, basis);
    REQUIRE(brute.plans.size() > 1100);
    std::vector<std::int64_t> bytes;
    for (const BrutePlan& plan : brute.plans) { bytes.push_back(plan.basis_bytes); }
    std::ranges::sort(bytes);
    // A small share of a card that holds them all.
    SearchOptions options = {.memory_threshold = 1.0 / 4096, .basis = basis, .top = 3};
    job.cluster.memory_limit_bytes = 4096 * bytes[2];  // three plans or a few more fit
    const BruteRanking expected = rank(job, brute, options);
    REQUIRE(expected.top.size() == 3);
    const SearchResult result = search_plans(job, space, options);
    REQUIRE(result.top.size() == 3);
    for (std::size_t at = 0; at < 3; ++at) { CHECK(result.top[at].plan == expected.top[at].plan); }
    CHECK(total(result) == brute.plans_in_space);
    job.cluster.memory_limit_bytes = 4096 * (bytes[0] - 1);  // nothing fits
    const SearchResult none = search_plans(job, space, options);
    CHECK(none.top.empty());
    CHECK(none.plans_fitting == 0);
    CHECK(total(none) == brute.plans_in_space);
    CHECK(std::ranges::count_if(brute.plans, [&](const BrutePlan& plan) {
            return plan.tokens_per_s_per_gpu > expected.top.front().tokens_per_s_per_gpu;
          }) > kMaxUndecided);
  }
}

TEST_CASE("a search of a part for plans of a least speed finds its best one if that is as fast") {
  std::mt19937_64 random(29);
  std::int64_t found = 0;
  std::int64_t refused = 0;
  // What is drawn depends on the compiler, and few draws can be refused without a price.
  for (int round = 0; round < 120 || (refused == 0 && round < 2000); ++round) {
    CAPTURE(round);
    const Job job = random_small_job(random);
    const SearchSpace space = random_small_space(job, random);
    SearchOptions options = {.memory_threshold = 0.8, .top = 1, .threads = 1};
    PriceTables tables(job, options.threads);
    const SearchResult whole = search_plans(job, space, options, tables);
    SearchSpace part = space;
    part.tp.erase(part.tp.begin());
    part.recompute.resize(1);
    part.pp = {part.pp.back()};
    const SearchResult expected = search_plans(job, part, options);
    if (whole.top.empty() || expected.top.empty()) {
      continue;
    }
    const double speed = expected.top.front().price.tokens_per_s_per_gpu;
    options.least_tokens_per_s_per_gpu = speed;
    CHECK(same_top(search_plans(job, part, options, tables), expected));
    ++found;
    options.least_tokens_per_s_per_gpu = 2 * speed;
    const SearchResult none = search_plans(job, part, options, tables);
    CHECK((none.top.empty() || same_top(none, expected)));
    refused += none.top.empty() ? 1 : 0;
  }
  CHECK(found > 30);
  CHECK(refused > 0);
}

TEST_CASE("one thread and two give the same result for every job") {
  std::mt19937_64 random(17);
  for (int round = 0; round < 120; ++round) {
    CAPTURE(round);
    Job job = random_small_job(random);
    job.profile.allocator = AllocatorKind::kStaticArenas;
    const SearchSpace space = random_small_space(job, random);
    SearchOptions options = {.memory_threshold = 0.8, .top = 4, .threads = 1, .pareto = true};
    const SearchResult whole = search_plans(job, space, options);
    if (whole.plans_priced > 0) {  // a limit between the plans
      job.cluster.memory_limit_bytes = 2 * whole.top.front().price.allocated_bytes;
    }
    const SearchResult one = search_plans(job, space, options);
    options.threads = 2;
    const SearchResult two = search_plans(job, space, options);
    CHECK(one.pruned == two.pruned);
    CHECK(one.plans_priced == two.plans_priced);
    CHECK(one.plans_fitting == two.plans_fitting);
    CHECK(one.smallest == two.smallest);
    CHECK(same_top(one, two));
    CHECK(std::ranges::equal(one.pareto, two.pareto, {}, &ParetoPoint::plan, &ParetoPoint::plan));
  }
}

}  // namespace

}  // namespace shardplan
