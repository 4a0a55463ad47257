#include "data/gpus/gpu_key.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace shardplan {
namespace {

// Words that stand in names of several GPUs without telling them apart: the memory's technology
// follows from the chip and its size, "AC" is air cooling.
constexpr std::array kTellNothing =
    std::to_array<std::string_view>({"nvidia", "corporation", "tesla", "geforce", "generation",
                                     "gpu", "graphics", "hbm2", "hbm2e", "hbm3", "hbm3e", "ac"});

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

bool is_number(const std::string& word) {
  return std::ranges::all_of(word, is_digit);
}

// "sxm4" is the socket of its generation: "sxm".
std::string socket_of(const std::string& word) {
  return word.size() == 4 && word.starts_with("sxm") && is_digit(word.back()) ? "sxm" : word;
}

// In lower case, divided where neither letters nor digits stand. lspci's "GH100 [H100 SXM5 80GB]"
// names the product in brackets.
std::vector<std::string> words_of_name(std::string_view name) {
  const std::size_t open = name.find('[');
  const std::size_t close = name.find(']', std::min(open, name.size()));
  if (close != std::string_view::npos) {
    name = name.substr(open + 1, close - open - 1);
  }
  std::vector<std::string> words(1);
  for (const char letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  std::erase(words, "");
  return words;
}

// A chip that no data describe. '#' in the word stands for a digit with whatever follows it.
struct Uncovered {
  std::string_view word;
  std::string_view reason;
};
constexpr std::string_view kOthers = "only NVIDIA GPUs are covered";
constexpr std::string_view kVolta =
    "bf16 needs compute capability 8.0, that of an A100, and it has 7.0";
constexpr std::string_view kTuring =
    "bf16 needs compute capability 8.0, that of an A100, and it has 7.5";
constexpr std::string_view kOlder =
    "bf16 needs compute capability 8.0, that of an A100, and it has less than 7.0";
// Compute capabilities: NVIDIA's list of CUDA GPUs, developer.nvidia.com/cuda-gpus. AWS rents V100
// as p3 and T4 as g4dn.
constexpr std::array kUncovered = std::to_array<Uncovered>({
    {.word = "mi#", .reason = kOthers},       {.word = "instinct", .reason = kOthers},
    {.word = "radeon", .reason = kOthers},    {.word = "gfx#", .reason = kOthers},
    {.word = "tpu", .reason = kOthers},       {.word = "hightpu", .reason = kOthers},
    {.word = "trn#", .reason = kOthers},      {.word = "trainium", .reason = kOthers},
    {.word = "trainium#", .reason = kOthers}, {.word = "inf#", .reason = kOthers},
    {.word = "gaudi", .reason = kOthers},     {.word = "gaudi#", .reason = kOthers},
    {.word = "ascend", .reason = kOthers},    {.word = "910b", .reason = kOthers},
    {.word = "910c", .reason = kOthers},      {.word = "v100", .reason = kVolta},
    {.word = "v100s", .reason = kVolta},      {.word = "p3", .reason = kVolta},
    {.word = "p3dn", .reason = kVolta},       {.word = "t4", .reason = kTuring},
    {.word = "g4dn", .reason = kTuring},      {.word = "2080", .reason = kTuring},
    {.word = "rtx2080", .reason = kTuring},   {.word = "8000", .reason = kTuring},
    {.word = "p100", .reason = kOlder},       {.word = "p40", .reason = kOlder},
    {.word = "k80", .reason = kOlder},        {.word = "m40", .reason = kOlder},
    {.word = "gtx", .reason = kOlder},
});

bool is_meant(const Uncovered& chip, const std::string& word) {
  if (!chip.word.ends_with('#')) {
    return word == chip.word;
  }
  const std::string_view begin = chip.word.substr(0, chip.word.size() - 1);
  return word.size() > begin.size() && word.starts_with(begin) && is_digit(word[begin.size()]);
}

}  // namespace

std::string gpu_key(std::string_view name) {
  std::vector<std::string> words;
  for (const std::string& word : words_of_name(name)) {
    if (word == "gb" && !words.empty() && is_number(words.back())) {
      words.back() += word;  // "80 GB"
    } else if (std::ranges::find(kTellNothing, word) == kTellNothing.end()) {
      words.push_back(socket_of(word));
    }
  }
  std::ranges::sort(words);
  std::string key;
  for (const std::string& word : words) { key += (key.empty() ? "" : " ") + word; }
  return key;
}

std::string why_not_covered(std::string_view name) {
  for (const std::string& word : words_of_name(name)) {
    for (const Uncovered& chip : kUncovered) {
      if (is_meant(chip, word)) {
        return std::string(chip.reason);
      }
    }
  }
  return "";
}

}  // namespace shardplan
