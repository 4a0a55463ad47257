// Draws the case lines of the corpus, once: what is drawn is committed, for the drawing itself asks
// the code that the corpus holds still. A new framework's lines are drawn as all others were.
// usage: corpus_draw plans FRAMEWORK NUMBER    valid plans, the first ones unlike each other
//        corpus_draw options FRAMEWORK         every switch at each other value
//        corpus_draw refused FRAMEWORK         every rule broken once, as far as chance breaks it
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "estimator/answer/step_trace.h"
#include "estimator/estimate.h"
#include "tests/estimator/random_case_lines.h"

namespace shardplan {
namespace {

constexpr std::uint64_t kSeed = 46;
constexpr std::int64_t kMostActions = 200'000;  // of a step: longer ones are slow to walk

// The line with another id.
std::string with_id(std::string text, const std::string& id) {
  const std::string old = "\"id\":\"sweep\"";
  return text.replace(text.find(old), old.size(), "\"id\":\"" + id + "\"");
}

std::string numbered(const std::string& prefix, std::size_t number) {
  const std::string digits = std::to_string(number);
  return prefix + std::string(3 - std::min<std::size_t>(3, digits.size()), '0') + digits;
}

// What sets one case apart from others, choice by choice.
std::vector<std::string> features_of(const Case& read) {
  const Job& job = read.job;
  const Plan& plan = read.plan;
  std::vector<std::string> features = {
      "schedule " + std::string(name_of(plan.schedule)),
      "recompute " + std::string(name_of(plan.recompute.granularity)) +
          std::string(name_of(plan.recompute.method)) + plan.recompute.policy,
      "precision " + std::string(name_of(plan.precision)),
      "zero " + std::to_string(plan.zero),
      "gradients " + std::string(name_of(plan.grad_dtype)),
      "moments " + std::string(name_of(plan.exp_avg_dtype)),
      "cp " + (plan.cp > 1 ? std::string(name_of(plan.cp_method)) : "none"),
      "optimizer " + std::string(name_of(job.optimizer)),
      "attention " + std::to_string(static_cast<int>(job.model.attention)),
      "experts " + std::to_string(job.model.moe.num_experts > 0),
      "family " + job.model.family,
      "gpu " + job.cluster.gpu.id,
      "tp " + std::to_string(plan.tp > 1) + std::to_string(plan.sequence_parallel),
      "ep " + std::to_string(plan.ep > 1) + std::to_string(plan.etp > 1),
      "pp " + std::to_string(plan.pp > 1) + std::to_string(plan.vpp > 1),
      "replicas " + std::to_string(plan.dp_replicate > 1),
      "offload " + std::to_string(plan.offload.optimizer > 0) +
          std::to_string(plan.offload.parameters),
      "layers " + std::to_string(plan.layers_per_chunk.empty()),
      "order " + std::to_string(plan.rank_order == Plan{}.rank_order),
      "batch " + std::to_string(plan.micro_batch > 1),
      "nodes " + std::to_string(job.cluster.nodes > 1)};
  for (const CaseOption& option : read.options) {
    features.push_back("option " + option.name + " " + option.value);
  }
  for (const auto& module : kRecomputeModules) {
    if (plan.recompute.modules.*module.value) {
      features.push_back("module " + std::string(module.name));
    }
  }
  return features;
}

// Each feature, and each pair of them, by hash.
std::vector<std::size_t> traits_of(const Case& read) {
  std::vector<std::size_t> traits;
  const std::vector<std::string> features = features_of(read);
  for (const std::string& one : features) {
    for (const std::string& other : features) {
      if (one <= other) {
        std::string pair = one;
        pair.append("; ").append(other);
        traits.push_back(std::hash<std::string>()(pair));
      }
    }
  }
  return traits;
}

struct Drawn {
  RandomCaseLine line;
  std::vector<std::size_t> traits;
};

std::vector<Drawn> draw_valid(const std::string& framework, const Library& library,
                              std::size_t number) {
  RandomCaseLines lines(library, kSeed, framework);
  std::vector<Drawn> drawn;
  while (drawn.size() < number) {
    RandomCaseLine line = lines.next();
    if (num_actions(line.read.job, line.read.plan) <= kMostActions) {
      std::vector<std::size_t> traits = traits_of(line.read);
      drawn.push_back({.line = std::move(line), .traits = std::move(traits)});
    }
  }
  return drawn;
}

// Of twice as many the ones that add most to those before them.
void print_plans(const std::string& framework, const Library& library, std::size_t number) {
  std::vector<Drawn> drawn = draw_valid(framework, library, 2 * number);
  std::unordered_set<std::size_t> seen;
  for (std::size_t i = 0; i < number; ++i) {
    const auto news = [&](const Drawn& one) {
      return std::ranges::count_if(one.traits,
                                   [&](std::size_t trait) { return !seen.contains(trait); });
    };
    const auto best = std::ranges::max_element(drawn, {}, news);
    seen.insert(best->traits.begin(), best->traits.end());
    std::printf("%s\n", with_id(best->line.text, numbered("", i)).c_str());
    drawn.erase(best);
  }
}

std::vector<std::string> other_values(const ProfileOption& option) {
  if (option.type == "bool") {
    return {option.default_value == "true" ? "false" : "true"};
  }
  std::vector<std::string> values;
  if (option.type == "choice") {
    for (const std::string& word : option.choices) {
      if (word != option.default_value) {
        values.push_back('"' + word + '"');
      }
    }
    return values;
  }
  const double own = std::atof(option.default_value.c_str());
  std::set<double> numbers = {option.low, own + 1, 2 * own + 4, option.high};
  if (option.type == "number") {
    numbers.insert({own + 0.25, own / 2});
  }
  for (const double number : numbers) {
    if (number != own && number >= option.low && number <= option.high) {
      values.push_back(option.type == "integer" ? std::to_string(std::llround(number))
                                                : std::to_string(number));
    }
  }
  return values;
}

std::string with_option(std::string text, const std::string& name, const std::string& value) {
  const std::string plan = ",\"plan\":";
  return text.insert(text.rfind(plan), ",\"options\":{\"" + name + "\":" + value + "}");
}

// Bytes and seconds of a plan, to see whether a switch does anything.
std::vector<double> effects_of(const Case& read) {
  std::vector<double> effects = {estimate_step_time(read.job, read.plan).total_s};
  for (const StageMemory& stage : estimate_memory(read.job, read.plan).stages) {
    effects.push_back(static_cast<double>(stage.allocated_bytes));
    effects.push_back(static_cast<double>(stage.device_used_bytes));
    effects.push_back(static_cast<double>(stage.built_bytes));
  }
  return effects;
}

// A plan under the framework's own switches.
struct Base {
  std::string text;
  std::vector<double> effects;
};

// The first two plans that the switch changes; else the first that may have it; else one that the
// framework refuses with it.
void print_option(const std::vector<Base>& bases, const ProfileOption& option,
                  const std::string& value, const Library& library, std::size_t& number) {
  constexpr std::size_t kChanged = 2;
  std::vector<std::string> changed;
  std::string allowed;
  std::string refused;
  for (const Base& base : bases) {
    const std::string text = with_option(base.text, option.name, value);
    const Case read = read_case(text, "option", library);
    if (first_broken_rule(read.job, read.plan) != nullptr) {
      refused = text;
      continue;
    }
    allowed = text;
    if (effects_of(read) != base.effects) {
      changed.push_back(text);
    }
    if (changed.size() == kChanged) {
      break;
    }
  }
  if (changed.empty()) {
    changed.push_back(allowed.empty() ? refused : allowed);
  }
  for (const std::string& text : changed) {
    std::printf("%s\n", with_id(text, numbered(option.name + "-", number++)).c_str());
  }
}

void print_options(const std::string& framework, const Library& library) {
  constexpr std::size_t kBases = 60;
  std::vector<Base> bases;
  for (const Drawn& one : draw_valid(framework, library, 4 * kBases)) {
    if (bases.size() < kBases && one.line.text.find("\"options\":{") == std::string::npos) {
      bases.push_back({.text = one.line.text, .effects = effects_of(one.line.read)});
    }
  }
  for (const ProfileOption& option : library.profile(framework).options) {
    std::size_t number = 0;
    for (const std::string& value : other_values(option)) {
      print_option(bases, option, value, library, number);
    }
  }
}

void print_refused(const std::string& framework, const Library& library) {
  constexpr int kTries = 60'000;
  RandomCaseLines lines(library, kSeed, framework);
  std::map<std::string, std::string> first;
  for (int i = 0; i < kTries; ++i) {
    const RandomCaseLine line = lines.next_readable();
    if (const ValidityRule* const rule = first_broken_rule(line.read.job, line.read.plan)) {
      first.emplace(rule->name, line.text);
    }
  }
  for (const ValidityRule& rule : validity_rules(library.framework(framework))) {
    const auto found = first.find(std::string(rule.name));
    if (found == first.end()) {
      std::fprintf(stderr, "%s: chance never broke %s\n", framework.c_str(),
                   std::string(rule.name).c_str());
    } else {
      std::printf("%s\n", with_id(found->second, found->first).c_str());
    }
  }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  using namespace shardplan;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const Library library;
  if (words.size() == 3 && words[0] == "plans") {
    print_plans(words[1], library, static_cast<std::size_t>(std::atoll(words[2].c_str())));
  } else if (words.size() == 2 && words[0] == "options") {
    print_options(words[1], library);
  } else if (words.size() == 2 && words[0] == "refused") {
    print_refused(words[1], library);
  } else {
    std::fprintf(
        stderr,
        "usage: corpus_draw plans FRAMEWORK NUMBER | options FRAMEWORK | refused FRAMEWORK\n");
    return 2;
  }
  return 0;
}
