#include "tools/bench/training_options.h"

#include "data/read/input_error.h"
#include "tools/options/option_values.h"

namespace shardplan {

const std::string_view kTrainingUsage =
    R"(usage: bench_training [CASES.jsonl] [--gpu NAME|FILE] [--gpus N] [--seconds 30]
                        [--gemm-seconds 60] [--minutes M] [--out FILE] [--limits FILE]
                        [--commit ID] [--profile] [--tune N] [--products FILE]
                        [--attention fastest|own] [--collectives fastest|nccl] [--stand-in]
Tokens per second of real training steps, each beside a limit that was written down before.
Without a file of case lines: the table for the GPUs here, or for N of them.
--gpu           whose measured rates the limits rest on: what calibrate --time wrote on this
                machine; default H200-SXM-141GB. A file of cases names its GPUs itself
--seconds       of measured steps of every case, five steps at least
--gemm-seconds  of a product on all GPUs at once before the first case and after the last: the
                sustained rate of the roofline; 0: none, the default with a file
--minutes       begins no case that would not end by then; the same command goes on
--out           result lines, one at a time; cases that are there are not run again
--limits        the limits as CSV, before anything runs
--commit        what was built, for the record; default: what git says here
--profile       one more step, operation by operation, on the rank whose losses are itemised
--tune          first chooses the fastest of N algorithms of cuBLASLt for every product that FILE
                lacks, and adds the choices to it; 0.4 s for each algorithm
--products      the file of choices, else $SHARDPLAN_PRODUCTS or shardplan/products in
                $XDG_CACHE_HOME; products that it lacks run as cuBLASLt suggests
--collectives   nccl: also those of tensor and context parallelism that copy engines can serve
--stand-in      where GPUs are missing (--gpus 8 on two): the first ranks run, one on each GPU here,
                and copy into each other's memory what they would copy into absent ranks'. A
                step takes as long as a rank's and computes nonsense; what NCCL would do with
                absent ranks (gradients of data parallelism) is left out
)";

namespace {

constexpr double kMostSeconds = 1e6;
constexpr std::int64_t kMostGpus = 1024;
constexpr std::int64_t kMostCandidates = 1000;

// An option that takes a value; false: there is none of this name.
bool read_value(std::string_view word, const std::string& value, TrainingOptions& options) {
  const auto names = [&](std::string_view name) { return word == name; };
  if (names("--seconds")) {
    options.seconds = parse_number(value, 0, kMostSeconds, "--seconds");
  } else if (names("--gemm-seconds")) {
    options.gemm_seconds = parse_number(value, 0, kMostSeconds, "--gemm-seconds");
  } else if (names("--minutes")) {
    options.minutes = parse_number(value, 0, kMostSeconds, "--minutes");
  } else if (names("--gpus")) {
    options.num_gpus = parse_count(value, 1, kMostGpus, "--gpus");
  } else if (names("--gpu")) {
    options.gpu = value;
  } else if (names("--out")) {
    options.out = value;
  } else if (names("--limits")) {
    options.limits = value;
  } else if (names("--commit")) {
    options.commit = value;
  } else if (names("--tune")) {
    options.candidates = static_cast<int>(parse_count(value, 1, kMostCandidates, "--tune"));
  } else if (names("--products")) {
    options.products = value;
  } else if (names("--attention")) {
    options.attention = parse_choice(value, {"fastest", "own"}, "--attention") == "own"
                            ? AttentionKernels::kOwn
                            : AttentionKernels::kFastest;
  } else if (names("--collectives")) {
    options.collectives = parse_choice(value, {"fastest", "nccl"}, "--collectives") == "nccl"
                              ? Collectives::kNccl
                              : Collectives::kFastest;
  } else {
    return false;
  }
  return true;
}

}  // namespace

TrainingOptions training_options(const std::vector<std::string_view>& words) {
  TrainingOptions options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--profile") {
      options.profiles = true;
    } else if (word == "--stand-in") {
      options.stands_in = true;
    } else if (options.file.empty() && !word.starts_with("--")) {
      options.file = word;
    } else if (i + 1 == words.size() || !read_value(word, std::string(words[i + 1]), options)) {
      throw InputError("found '" + std::string(word) +
                       "', expected an option with its value; --help shows them");
    } else {
      ++i;
    }
  }
  constexpr double kGemmSeconds = 60;
  if (options.gemm_seconds < 0) {
    options.gemm_seconds = options.file.empty() ? kGemmSeconds : 0;
  }
  return options;
}

std::string training_command(const std::vector<std::string_view>& words) {
  std::string text = "bench_training";
  for (const std::string_view word : words) {
    text += ' ';
    text += word;
  }
  return text;
}

}  // namespace shardplan
