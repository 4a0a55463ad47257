// Layouts that teams chose by trial for their largest runs lose little speed in the model.
#include <doctest/doctest.h>

#include <vector>

#include "data/read/library.h"
#include "search/space/default_space.h"
#include "search/space/resize.h"
#include "search/walk/search.h"
#include "tests/search/jobs.h"

namespace shardplan {
namespace {

struct Choice {
  const char* name;
  std::int64_t hidden;
  std::int64_t layers;
  std::int64_t heads;
  std::int64_t num_gpus;
  std::int64_t tp;
  std::int64_t pp;
  std::int64_t global_batch;
  double most_lost;  // share of the best predicted speed
};

// Megatron-LM on A100: arXiv 2104.04473, table 1. The two smallest, chosen without interleaving,
// are where the model disagrees: it prefers tp 2 with several chunks a rank.
const std::vector<Choice> kMegatronTable = {
    {"18B", 6144, 40, 48, 256, 8, 1, 1024, 0.16},
    {"39B", 8192, 48, 64, 512, 8, 2, 1536, 0.13},
    {"76B", 10240, 60, 80, 1024, 8, 4, 1792, 0.05},
    {"145B", 12288, 80, 96, 1536, 8, 8, 2304, 0.05},
    {"310B", 16384, 96, 128, 1920, 8, 16, 2160, 0.05},
    {"530B", 20480, 105, 128, 2520, 8, 35, 2520, 0.05},
    {"1T", 25600, 128, 160, 3072, 8, 64, 3072, 0.05},
};

// The shape of the table with a gated FFN of as many products: 8/3 h instead of 4 h.
Job job_of(const Choice& choice, const Library& library) {
  Job job;
  job.profile = library.framework("megatron");
  job.profile.overlap_p2p_comm = false;  // younger than the paper
  job.cluster = *resized(library.cluster("1x8-a100"), choice.num_gpus);
  ModelSpec& model = job.model;
  model.hidden = choice.hidden;
  model.ffn = choice.hidden * 8 / 3 / 256 * 256;
  model.vocab = 51200;
  model.num_heads = choice.heads;
  model.num_kv_heads = choice.heads;
  model.head_dim = choice.hidden / choice.heads;
  model.tied_embeddings = true;
  model.layers.resize(static_cast<std::size_t>(choice.layers));
  job.sequence_length = 2048;
  job.global_batch = choice.global_batch;
  return job;
}

// The speed that the published degrees lose against the best plan of the same space.
double lost(const Job& job, SearchSpace space, std::int64_t tp, std::int64_t pp,
            const SearchOptions& options) {
  const auto best = [&] {
    const SearchResult result = search_plans(job, space, options);
    REQUIRE_FALSE(result.top.empty());
    return result.top.front().time.tokens_per_s_per_gpu;
  };
  const double of_all = best();
  space.tp = {tp};
  space.pp = {pp};
  return 1 - best() / of_all;
}

}  // namespace

TEST_CASE("the published layouts of Megatron-LM on A100 lose at most 5 % from 76B parameters on") {
  const Library library;
  const SearchOptions options = {.memory_threshold = 0.9, .top = 1};
  for (const Choice& choice : kMegatronTable) {
    CAPTURE(choice.name);
    const Job job = job_of(choice, library);
    SearchSpace space = default_space(job);
    space.cp = {1};
    space.zero = {0};
    space.recompute = {{.granularity = RecomputeGranularity::kFull}};
    space.uneven_layers = false;
    CHECK(lost(job, space, choice.tp, choice.pp, options) <= choice.most_lost);
  }
}

// arXiv 2407.21783, table 4: 16,384 H100, tp 8, pp 16, dp 128 at 8,192 tokens.
TEST_CASE("without context parallelism nothing beats what trained Llama 3 405B") {
  const Job job = llama_405b_job(2048);
  SearchSpace space = default_space(job);
  space.cp = {1};
  space.micro_batch = {1, 2};
  CHECK(lost(job, space, 8, 16, {.top = 1}) <= 0.001);
}

}  // namespace shardplan
