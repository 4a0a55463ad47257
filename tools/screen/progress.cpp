#include "tools/screen/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "tools/report/text.h"

namespace shardplan {
namespace {

std::atomic<bool> interrupted = false;  // signal handlers reach nothing but statics
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void note_interrupt(int signal_number) {
  interrupted = true;
  std::signal(signal_number, SIG_DFL);
}

// "35.3 billion".
std::string rounded(double value) {
  struct Scale {
    double least;
    const char* word;
  };
  for (const Scale& scale : {Scale{1e12, " trillion"}, Scale{1e9, " billion"},
                             Scale{1e6, " million"}, Scale{1e4, " thousand"}}) {
    if (value >= scale.least) {
      const double unit = scale.least == 1e4 ? 1e3 : scale.least;
      return fixed(value / unit, value / unit < 100 ? 1 : 0) + scale.word;
    }
  }
  return whole(value);
}

std::string duration(double seconds) {
  const auto whole_seconds = static_cast<std::int64_t>(seconds);
  return whole_seconds < 120 ? std::to_string(whole_seconds) + " s"
                             : std::to_string(whole_seconds / 60) + " min";
}

void write_row(const std::string& words) {
  winsize size = {};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::size_t width = is_known ? size.ws_col - std::size_t{1} : 59;
  const std::string row = "\r" + words.substr(0, width) + "\x1b[K";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, row.data(), row.size());
}

}  // namespace

std::string progress_words(const SearchProgress& progress, double seconds) {
  const bool decides = progress.to_estimate == 0;
  const std::int64_t done = decides ? progress.decided : progress.estimated;
  const std::int64_t all = decides ? progress.plans : progress.to_estimate;
  const double share = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1;
  std::string text = fixed(100 * share, 0) + " % of " + rounded(static_cast<double>(all)) +
                     (decides ? " plans" : " plans to show");
  const double rate = progress.seconds > 0 ? static_cast<double>(done) / progress.seconds : 0;
  if (decides && rate > 0) {
    text += ", " + rounded(rate) + " a second, " +
            duration(static_cast<double>(all - done) / rate) + " left";
  }
  return text + " (" + duration(seconds) + ")";
}

ProgressRow::ProgressRow() {
  if (isatty(STDERR_FILENO) != 0) {
    writer_ = std::thread([this] { write_now_and_then(); });
  }
}

ProgressRow::~ProgressRow() {
  if (!writer_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(state_);
    is_over_ = true;
  }
  ended_.notify_all();
  writer_.join();
}

void ProgressRow::tell(const SearchProgress& progress) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  tell(progress_words(progress, seconds));
}

void ProgressRow::tell(const std::string& words) {
  const std::lock_guard lock(state_);
  words_ = words;
}

void ProgressRow::write_now_and_then() {
  constexpr std::chrono::milliseconds kFirst(700);
  constexpr std::chrono::milliseconds kNext(250);
  std::unique_lock lock(state_);
  bool is_shown = false;
  while (!ended_.wait_for(lock, is_shown ? kNext : kFirst, [this] { return is_over_; })) {
    write_row(words_);
    is_shown = true;
  }
  if (is_shown) {
    write_row("");
  }
}

InterruptFlag::InterruptFlag() {
  interrupted = false;
  std::signal(SIGINT, note_interrupt);
}

InterruptFlag::~InterruptFlag() {
  std::signal(SIGINT, SIG_DFL);
}

const std::atomic<bool>& InterruptFlag::is_set() const {
  return interrupted;
}

}  // namespace shardplan
