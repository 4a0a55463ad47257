#include "tests/estimator/random_case_lines.h"
#include "estimator/answer/why_invalid.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace shardplan {
namespace {

std::string quoted(std::string_view text) {
  return '"' + std::string(text) + '"';
}

// Of chunks that differ by one layer, if at all.
std::string layers_of_chunks(std::int64_t layers, std::int64_t chunks, std::int64_t first) {
  std::string text;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const bool is_longer = (chunk - first + chunks) % chunks < layers % chunks;
    text += (text.empty() ? "" : ",") + std::to_string(layers / chunks + (is_longer ? 1 : 0));
  }
  return "[" + text + "]";
}

std::optional<Case> read_if_possible(const std::string& line, const Library& library) {
  try {
    return read_case(line, "sweep:1", library);
  } catch (const InputError&) {  // most lines of chance do not go together
    return std::nullopt;
  }
}

bool is_valid(const Case& read) {
  return read.supported && first_broken_rule(read.job, read.plan) == nullptr;
}

}  // namespace

Members& Members::add(std::string_view name, const std::string& value) {
  text_ += (text_.empty() ? "" : ",") + quoted(name) + ":" + value;
  return *this;
}

Members& Members::add(std::string_view name, std::int64_t value) {
  return add(name, std::to_string(value));
}

Members& Members::add_word(std::string_view name, std::string_view word) {
  return add(name, quoted(word));
}

Members& Members::add_bool(std::string_view name, bool value) {
  return add(name, value ? "true" : "false");
}

RandomCaseLines::RandomCaseLines(const Library& library, std::uint64_t seed)
    : library_(library),
      models_(library.model_names()),
      frameworks_(library.framework_names()),
      gpus_(library.gpu_names()),
      random_(seed) {}

RandomCaseLines::RandomCaseLines(const Library& library, std::uint64_t seed,
                                 const std::string& framework)
    : RandomCaseLines(library, seed) {
  frameworks_ = {framework};
}

bool RandomCaseLines::chance(double share) {
  return std::bernoulli_distribution(share)(random_);
}

std::int64_t RandomCaseLines::between(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
}

template <class Value>
const Value& RandomCaseLines::one_of(const std::vector<Value>& values) {
  return values[static_cast<std::size_t>(between(0, std::ssize(values) - 1))];
}

std::int64_t RandomCaseLines::pick(std::initializer_list<std::int64_t> values) {
  return values.begin()[between(0, std::ssize(values) - 1)];
}

template <class Rows>
std::string RandomCaseLines::word_of(const Rows& rows) {
  return quoted(rows[static_cast<std::size_t>(between(0, std::ssize(rows) - 1))].name);
}

// Sizes that no published model has, small ones among them.
std::string RandomCaseLines::config(Asked& asked) {
  Members members;
  const std::int64_t heads = pick({1, 2, 4, 6, 8, 16, 64});
  const std::int64_t head_dim = pick({8, 16, 64, 128});
  const std::int64_t kv_heads = chance(0.5) ? heads : pick({1, 2, 4, 8});
  asked.num_layers = between(1, 12);
  members.add("hidden_size", heads * head_dim)
      .add("intermediate_size", pick({8, 96, 1000, 11008}))
      .add("num_hidden_layers", asked.num_layers)
      .add("num_attention_heads", heads)
      .add("num_key_value_heads", heads % kv_heads == 0 ? kv_heads : heads)
      .add("vocab_size", pick({16, 1000, 32000, 151936}))
      .add_bool("tie_word_embeddings", chance(0.3));
  asked.has_experts = chance(0.5);
  if (!asked.has_experts) {
    return members.add_word("model_type", chance(0.5) ? "llama" : "qwen3").object();
  }
  if (chance(0.5)) {
    return members.add_word("model_type", "mixtral")
        .add("num_local_experts", pick({2, 3, 8, 64}))
        .add("num_experts_per_tok", pick({1, 2}))
        .object();
  }
  return members.add_word("model_type", "qwen3_moe")
      .add("head_dim", head_dim)
      .add("num_experts", pick({4, 8, 128}))
      .add("num_experts_per_tok", pick({1, 2, 4}))
      .add("moe_intermediate_size", pick({8, 192, 768}))
      .add("decoder_sparse_step", pick({1, 1, 2}))
      .object();
}

std::string RandomCaseLines::model(Asked& asked) {
  if (chance(0.3)) {
    return config(asked);
  }
  const std::string& name = one_of(models_);
  const ModelSpec read = library_.model(name).model;
  asked.has_experts = read.moe.num_experts > 0;
  asked.num_layers = read.num_layers();
  return quoted(name);
}

std::int64_t RandomCaseLines::sequence_length() {
  if (chance(0.3)) {
    return between(1, 64);
  }
  return chance(0.2) ? between(65, 40'000) : std::int64_t{1} << between(0, 18);
}

std::string RandomCaseLines::training(std::int64_t sequence_length) {
  Members members;
  members.add("sequence_length", sequence_length)
      .add("micro_batch", chance(0.7) ? 1 : between(1, 8))
      .add("num_microbatches", chance(0.5) ? between(1, 8) : pick({16, 32, 64, 128}));
  if (chance(0.3)) {
    members.add("precision", word_of(kPrecisions));
  }
  if (chance(0.2)) {
    members.add("optimizer", word_of(kOptimizerKinds));
  }
  if (chance(0.05)) {
    members.add("trained", word_of(kTrainedParameters));
  }
  return members.object();
}

std::string RandomCaseLines::value_of_option(const ProfileOption& option) {
  if (option.type == "bool") {
    return chance(0.5) ? "true" : "false";
  }
  if (option.type == "choice") {
    return quoted(one_of(option.choices));
  }
  if (option.type == "integer") {
    const std::int64_t low = std::llround(option.low);
    const std::int64_t high = std::llround(option.high);
    const std::int64_t near = std::max<std::int64_t>(low, std::atoll(option.default_value.c_str()));
    switch (between(0, 3)) {
      case 0: return std::to_string(low);
      case 1: return std::to_string(high);
      case 2: return std::to_string(std::min(high, near + between(0, near)));
      default: return std::to_string(std::min(high, low + between(0, 64)));
    }
  }
  const double share = static_cast<double>(between(0, 100)) / 100;
  return std::to_string(option.low + share * (std::min(option.high, option.low + 4) - option.low));
}

std::string RandomCaseLines::options(const std::string& framework) {
  const std::vector<ProfileOption>& known = library_.profile(framework).options;
  Members members;
  std::vector<std::string> given;
  for (std::int64_t i = known.empty() ? 0 : between(0, 4); i > 0; --i) {
    const ProfileOption& option = one_of(known);
    if (std::ranges::find(given, option.name) == given.end()) {
      given.push_back(option.name);
      members.add(option.name, value_of_option(option));
    }
  }
  return members.object();
}

RandomCaseLines::Asked RandomCaseLines::job() {
  Asked asked;
  asked.framework = one_of(frameworks_);
  if (asked.framework.find('@') != std::string::npos && chance(0.8)) {
    asked.framework = one_of(frameworks_);  // older versions differ in little
  }
  const std::size_t at = asked.framework.find('@');
  asked.gpus_per_node = pick({1, 2, 4, 8, 8, 8});
  const std::int64_t nodes = chance(0.5) ? 1 : pick({2, 3, 4, 16, 128});
  Members members;
  members.add_word("id", "sweep").add_word("framework", asked.framework.substr(0, at));
  if (at != std::string::npos) {
    members.add_word("framework_version", asked.framework.substr(at + 1));
  }
  members.add("model", model(asked))
      .add_word("cluster", std::to_string(nodes) + "x" + std::to_string(asked.gpus_per_node) + "-" +
                               one_of(gpus_))
      .add("training", training(sequence_length()));
  if (chance(0.7)) {
    members.add("options", options(asked.framework));
  }
  asked.members = members.text();
  return asked;
}

std::string RandomCaseLines::recompute() {
  Members members;
  const std::string granularity = word_of(kRecomputeGranularities);
  members.add("granularity", granularity);
  if (granularity == quoted("full")) {
    members.add("method", word_of(kRecomputeMethods)).add("num_layers", between(1, 4));
  }
  if (granularity == quoted("selective")) {
    if (chance(0.3)) {
      members.add_word("policy", kRecomputePolicies[chance(0.5) ? 1 : 0]);
    } else {
      const std::string first = word_of(kRecomputeModules);
      const std::string second = word_of(kRecomputeModules);
      members.add("modules", "[" + first + (first == second ? "" : "," + second) + "]");
    }
  }
  return members.object();
}

void RandomCaseLines::add_pipeline(const Asked& asked, Members& members) {
  const std::int64_t pp = pick({2, 2, 3, 4, 8});
  members.add("pp", pp);
  std::int64_t vpp = 1;
  if (chance(0.7)) {
    const std::string schedule = word_of(kSchedules);
    const bool interleaves = schedule.find("interleaved") != std::string::npos;
    vpp = schedule == quoted("zbv") ? 2 : interleaves ? pick({2, 2, 3}) : 1;
    members.add("schedule", schedule).add("vpp", vpp);
  }
  if (chance(0.4)) {
    const std::int64_t chunks = pp * vpp;
    members.add("layers_per_chunk",
                layers_of_chunks(asked.num_layers, chunks, between(0, chunks - 1)));
  }
}

// What is no size.
void RandomCaseLines::add_choices(Members& members) {
  constexpr double kShare = 0.15;
  if (chance(0.5)) {
    members.add("zero", between(0, 3));
  }
  if (chance(0.5)) {
    members.add("recompute", recompute());
  }
  if (chance(kShare)) {
    members.add_bool("sequence_parallel", chance(0.5));
  }
  if (chance(kShare)) {
    members.add("cp_method", word_of(kCpMethods));
  }
  for (const std::string_view name :
       {"grad_dtype", "master_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"}) {
    if (chance(kShare)) {
      members.add_word(name, chance(0.5) ? "bf16" : "fp32");
    }
  }
  if (chance(kShare)) {
    members.add("offload", Members()
                               .add("optimizer", std::string(chance(0.5) ? "1" : "0.5"))
                               .add_bool("parameters", chance(0.3))
                               .object());
  }
  if (chance(kShare)) {
    members.add("moe_buffer_factor", std::string(chance(0.5) ? "1.5" : "0.25"));
  }
  if (chance(kShare)) {
    members.add_word("rank_order", chance(0.5) ? "dp-pp-cp-tp" : "tp-cp-dp-pp");
  }
}

std::string RandomCaseLines::plan(const Asked& asked) {
  Members members;
  if (chance(0.6)) {
    members.add("tp", std::min(asked.gpus_per_node, pick({1, 2, 2, 4, 8})));
  }
  if (chance(0.35)) {
    members.add("cp", pick({2, 2, 4, 8}));
  }
  if (asked.has_experts && chance(0.8)) {
    members.add("ep", pick({2, 2, 4, 8, 32}));
  }
  if (asked.has_experts && chance(0.3)) {
    members.add("etp", pick({1, 2}));
  }
  if (chance(0.6)) {
    add_pipeline(asked, members);
  }
  if (chance(0.1)) {
    members.add("dp_replicate", pick({2, 4}));
  }
  add_choices(members);
  return members.object();
}

RandomCaseLine RandomCaseLines::next() {
  constexpr int kPlansPerJob = 40;
  while (true) {
    const Asked asked = job();
    for (int i = 0; i < kPlansPerJob; ++i) {
      const std::string text = "{" + asked.members + ",\"plan\":" + plan(asked) + "}";
      std::optional<Case> read = read_if_possible(text, library_);
      if (read && is_valid(*read)) {
        return {.text = text, .read = std::move(*read)};
      }
    }
  }
}

RandomCaseLine RandomCaseLines::next_readable() {
  while (true) {
    const Asked asked = job();
    const std::string text = "{" + asked.members + ",\"plan\":" + plan(asked) + "}";
    if (std::optional<Case> read = read_if_possible(text, library_)) {
      return {.text = text, .read = std::move(*read)};
    }
  }
}

}  // namespace shardplan
