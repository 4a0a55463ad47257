// A set in ascending order, as std::set, kept in sorted arrays: the allocator's replay inserts and
// erases millions of elements of sets that mostly have fewer than a hundred.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace shardplan {

// T has operator< and is copied as bytes are; equal elements are one. Inserting and erasing end the
// life of iterators.
template <class T>
class SortedArrays {
 private:
  static constexpr std::size_t kMost = 32;
  // Has elements, fewer than kMost.
  struct Array {
    std::array<T, kMost> items;
    std::size_t size = 0;

    std::span<const T> elements() const { return {items.data(), size}; }
    const T& last() const { return items[size - 1]; }
    std::size_t place(const T& element) const {
      return static_cast<std::size_t>(
          std::ranges::lower_bound(elements(), element, std::less<T>()) - elements().begin());
    }
    void insert(std::size_t at, const T& element) {
      std::copy_backward(items.begin() + at, items.begin() + size, items.begin() + size + 1);
      items[at] = element;
      ++size;
    }
    void erase(std::size_t at) {
      std::copy(items.begin() + at + 1, items.begin() + size, items.begin() + at);
      --size;
    }
  };

 public:
  class Iterator {
   public:
    const T& operator*() const { return (*arrays_)[array_].items[index_]; }
    const T* operator->() const { return &**this; }
    Iterator& operator++() {
      if (++index_ == (*arrays_)[array_].size) {
        ++array_;
        index_ = 0;
      }
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    friend class SortedArrays;
    Iterator(const std::vector<Array>& arrays, std::size_t array, std::size_t index)
        : arrays_(&arrays), array_(array), index_(index) {}

    const std::vector<Array>* arrays_;
    std::size_t array_;
    std::size_t index_;
  };

  bool empty() const { return arrays_.empty(); }
  Iterator begin() const { return {arrays_, 0, 0}; }
  Iterator end() const { return {arrays_, arrays_.size(), 0}; }

  // The first element that is not less.
  Iterator lower_bound(const T& element) const {
    const std::size_t array = array_for(element);
    return array == arrays_.size() ? end()
                                   : Iterator(arrays_, array, arrays_[array].place(element));
  }

  void insert(const T& element) {
    if (arrays_.empty()) {
      arrays_.emplace_back().insert(0, element);
      return;
    }
    const std::size_t array = std::min(array_for(element), arrays_.size() - 1);
    Array& chosen = arrays_[array];
    const std::size_t at = chosen.place(element);
    if (at < chosen.size && !(element < chosen.items[at])) {
      return;
    }
    chosen.insert(at, element);
    if (chosen.size == kMost) {
      halve(array);
    }
  }

  // Nothing if there is no such element.
  void erase(const T& element) {
    const Iterator at = lower_bound(element);
    if (at != end() && !(element < *at)) {
      erase(at);
    }
  }

  void erase(const Iterator& at) {
    arrays_[at.array_].erase(at.index_);
    if (arrays_[at.array_].size == 0) {
      arrays_.erase(arrays_.begin() + static_cast<std::ptrdiff_t>(at.array_));
    }
  }

 private:
  // The first array that ends with an element that is not less.
  std::size_t array_for(const T& element) const {
    const auto ends_before = [](const Array& array, const T& e) { return array.last() < e; };
    return static_cast<std::size_t>(
        std::lower_bound(arrays_.begin(), arrays_.end(), element, ends_before) - arrays_.begin());
  }

  void halve(std::size_t array) {
    arrays_.insert(arrays_.begin() + static_cast<std::ptrdiff_t>(array) + 1, Array{});
    Array& low = arrays_[array];
    Array& high = arrays_[array + 1];
    constexpr std::size_t kMiddle = kMost / 2;
    std::copy(low.items.begin() + kMiddle, low.items.end(), high.items.begin());
    high.size = kMost - kMiddle;
    low.size = kMiddle;
  }

  std::vector<Array> arrays_;
};

}  // namespace shardplan
