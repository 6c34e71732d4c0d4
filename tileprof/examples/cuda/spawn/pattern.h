// Regular expressions to Glushkov's automata, of at most 64 characters: letters, ., [a-z0-9], \x, (), |, *, + and ?.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace pattern {

using Set = unsigned long long;

struct Part {
    Set first = 0, last = 0;
    bool empty = false;
};

// Parses by descent and fills an automaton with members first, last, follow[64] and of[256].
template <class Automaton>
class Compiler {
  public:
    explicit Compiler(const std::string& text) : text_(text) {
        const Part whole = alternatives();
        if (at_ != text_.size() || whole.empty) refuse("ends early, or matches nothing at all");
        automaton_.first = whole.first, automaton_.last = whole.last;
    }
    const Automaton& automaton() const { return automaton_; }

  private:
    [[noreturn]] void refuse(const char* why) const {
        std::printf("the pattern %s at character %zu: %s\n", text_.c_str(), at_, why);
        std::exit(1);
    }
    bool takes(char c) { return at_ < text_.size() && text_[at_] == c && ++at_; }

    void follows(Set some, Set then) {
        for (int p = 0; p < count_; ++p)
            if (some >> p & 1) automaton_.follow[p] |= then;
    }

    Part alternatives() {
        Part part = sequence();
        while (takes('|')) {
            const Part other = sequence();
            part = {part.first | other.first, part.last | other.last, part.empty || other.empty};
        }
        return part;
    }

    Part sequence() {
        Part part = repeated();
        while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
            const Part next = repeated();
            follows(part.last, next.first);
            part = {part.first | (part.empty ? next.first : 0), next.last | (next.empty ? part.last : 0),
                    part.empty && next.empty};
        }
        return part;
    }

    Part repeated() {
        Part part = single();
        for (bool more = true; more;) {
            if (takes('*') || takes('+')) {
                part.empty = part.empty || text_[at_ - 1] == '*';
                follows(part.last, part.first);
            } else if (takes('?')) {
                part.empty = true;
            } else {
                more = false;
            }
        }
        return part;
    }

    Part single() {
        if (takes('(')) {
            const Part part = alternatives();
            if (!takes(')')) refuse("no closing parenthesis");
            return part;
        }
        if (at_ == text_.size() || count_ == 64) refuse("no character here, or more than 64 in all");
        const Set here = Set(1) << count_++;
        if (takes('.')) {
            for (Set& of : automaton_.of) of |= here;
        } else if (takes('[')) {
            while (!takes(']')) {
                if (at_ + 1 >= text_.size()) refuse("no closing bracket");
                const unsigned char from = text_[at_++];
                const unsigned char to = takes('-') ? text_[at_++] : from;
                for (int c = from; c <= to; ++c) automaton_.of[c] |= here;
            }
        } else {
            takes('\\');
            automaton_.of[static_cast<unsigned char>(text_[at_++])] |= here;
        }
        return {here, here, false};
    }

    std::string text_;
    std::size_t at_ = 0;
    int count_ = 0;
    Automaton automaton_ = {};
};

}  // namespace pattern
