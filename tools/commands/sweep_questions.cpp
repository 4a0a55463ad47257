#include "tools/commands/sweep_questions.h"

#include <set>

#include "tools/commands/overlaps.h"
#include "tools/options/option_values.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxGpus = std::int64_t{1} << 22;
constexpr std::size_t kMaxPoints = 256;

// A question asked twice is one, or one of the two was meant to be another.
void refuse_repeats(const std::vector<std::string>& words, const std::string& place) {
  std::set<std::string> known;
  for (const std::string& word : words) {
    if (!known.insert(word).second) {
      throw InputError(std::string(place)
                           .append(": found ")
                           .append(word)
                           .append(" twice, expected every value once"));
    }
  }
}

// "8,16,32", "8..1024" (doubling) or "8..64:8" (steps).
std::vector<std::int64_t> parse_sizes(const std::string& word) {
  const std::string place = "--num-gpus";
  std::vector<std::int64_t> sizes;
  for (const std::string& piece : parse_list(word, place)) {
    const std::size_t dots = piece.find("..");
    if (dots == std::string::npos) {
      sizes.push_back(parse_count(piece, 1, kMaxGpus, place));
      continue;
    }
    const std::size_t colon = piece.find(':', dots);
    const std::int64_t low = parse_count(piece.substr(0, dots), 1, kMaxGpus, place);
    const std::int64_t high =
        parse_count(piece.substr(dots + 2, colon == std::string::npos ? colon : colon - dots - 2),
                    low, kMaxGpus, place);
    const std::int64_t step =
        colon == std::string::npos ? 0 : parse_count(piece.substr(colon + 1), 1, kMaxGpus, place);
    for (std::int64_t size = low; size <= high && sizes.size() <= kMaxPoints;
         size = step > 0 ? size + step : 2 * size) {
      sizes.push_back(size);
    }
  }
  if (sizes.size() > kMaxPoints) {
    throw InputError(place + ": found more than " + std::to_string(kMaxPoints) + " sizes");
  }
  std::vector<std::string> words;
  words.reserve(sizes.size());
  for (const std::int64_t size : sizes) { words.push_back(std::to_string(size)); }
  refuse_repeats(words, place);
  return sizes;
}

// Cluster names: of --cluster, or one node of every --gpu with its usual network.
std::vector<std::string> cluster_names(const Options& options, const Library& library) {
  if (given(options, "gpu")) {
    if (given(options, "cluster")) {
      throw InputError("--gpu: found --cluster beside it, expected one of them");
    }
    const std::vector<std::string> gpus = parse_list(text_or(options, "gpu", ""), "--gpu");
    refuse_repeats(gpus, "--gpu");
    std::vector<std::string> names;
    for (const std::string& gpu : gpus) {
      const ClusterSpec usual = library.usual_cluster(gpu, "--gpu: ");
      names.push_back("1x" + std::to_string(usual.gpus_per_node) + "-" + gpu);
    }
    return names;
  }
  std::vector<std::string> names = parse_list(required_text(options, "cluster"), "--cluster");
  refuse_repeats(names, "--cluster");
  return names;
}

// Of each cluster: the same for all, or one each; none where none is given.
std::vector<std::string> prices_of(const Options& options, std::size_t num_clusters) {
  constexpr const char* kOption = "price-per-gpu-hour";
  if (!given(options, kOption)) {
    return {};
  }
  const std::string place = std::string("--") + kOption;
  std::vector<std::string> prices = parse_list(text_or(options, kOption, ""), place);
  if (prices.size() == 1) {
    prices.resize(num_clusters, prices.front());
  }
  if (prices.size() != num_clusters) {
    throw InputError(place + ": found " + std::to_string(prices.size()) + " prices for " +
                     std::to_string(num_clusters) + " clusters, expected one, or one for each");
  }
  return prices;
}

}  // namespace

// The price of the options over that of the cluster's file.
void set_price(ClusterSpec& cluster, const Options& options) {
  cluster.usd_per_gpu_hour = number_or(options, "price-per-gpu-hour", cluster.usd_per_gpu_hour);
}

SweepQuestions::SweepQuestions(const Options& options, const Library& library)
    : options_(options), library_(library) {
  if (given(options, "num-gpus")) {
    sizes_ = parse_sizes(text_or(options, "num-gpus", ""));
  } else if (given(options, "gpu")) {
    throw InputError("--gpu: found no --num-gpus beside it");
  }
  clusters_ = cluster_names(options, library);
  prices_ = prices_of(options, clusters_.size());
}

std::vector<SweepSize> SweepQuestions::sizes() const {
  std::vector<SweepSize> sizes;
  for (std::size_t cluster = 0; cluster < clusters_.size(); ++cluster) {
    for (const std::int64_t num_gpus : sizes_) {
      sizes.push_back({.cluster = cluster, .num_gpus = num_gpus});
    }
  }
  return sizes;
}

Options SweepQuestions::options_of(const SweepSize& size) const {
  Options one = options_;
  one.values["cluster"] = {clusters_[size.cluster]};
  if (!prices_.empty()) {
    one.values["price-per-gpu-hour"] = {prices_[size.cluster]};
  }
  if (size.num_gpus > 0) {
    one.values["num-gpus"] = {std::to_string(size.num_gpus)};
  }
  return one;
}

SweepQuestion SweepQuestions::of(const SweepSize& size) const {
  const Options one = options_of(size);
  SweepQuestion asked;
  asked.plain = search_question_of(one, library_);
  asked.question =
      search_question_of(with_switches(one, open_overlaps(one, asked.plain, library_)), library_);
  for (SearchQuestion* question : {&asked.question, &asked.plain}) {
    set_price(question->job.cluster, one);
  }
  if (asked.plain.job.cluster.usd_per_gpu_hour == 0 && given(options_, "target-cost")) {
    throw InputError("--target-cost: found no price of " + asked.plain.job.cluster.name +
                     ", expected --price-per-gpu-hour or usd_per_gpu_hour in its file");
  }
  return asked;
}

}  // namespace shardplan
