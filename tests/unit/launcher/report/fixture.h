/* Reads JSON back, strictly, so that a report that no parser would take fails its test. */
#ifndef CASTOR_TESTS_UNIT_LAUNCHER_REPORT_FIXTURE_H
#define CASTOR_TESTS_UNIT_LAUNCHER_REPORT_FIXTURE_H

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

class Json {
  public:
    enum Kind { NULL_VALUE, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT } kind = NULL_VALUE;
    double number = 0;
    std::string text;
    std::vector<Json> items;
    std::map<std::string, Json> members;

    static Json parse(const std::string &text) {
        size_t at = 0;
        Json value = parse_value(text, at);
        skip_space(text, at);
        if (at != text.size())
            throw std::runtime_error("text after the value");
        return value;
    }
    const Json &operator[](const std::string &key) const {
        auto found = members.find(key);
        if (found == members.end())
            throw std::runtime_error("no member " + key);
        return found->second;
    }
    const Json &operator[](size_t index) const { return items.at(index); }
    uint64_t count() const {
        if (kind != NUMBER)
            throw std::runtime_error("not a number");
        return (uint64_t)number;
    }

  private:
    static void skip_space(const std::string &text, size_t &at) {
        while (at < text.size() && strchr(" \n\r\t", text[at]) != nullptr)
            at++;
    }
    static void expect(const std::string &text, size_t &at, const std::string &part) {
        if (text.compare(at, part.size(), part) != 0)
            throw std::runtime_error("expected " + part + " at " + text.substr(at, 20));
        at += part.size();
    }
    static std::string parse_string(const std::string &text, size_t &at) {
        std::string result;
        expect(text, at, "\"");
        while (text.at(at) != '"') {
            if ((unsigned char)text[at] < 0x20)
                throw std::runtime_error("control character in a string");
            if (text[at] != '\\') {
                result += text[at++];
                continue;
            }
            char escape = text.at(++at);
            at++;
            if (escape == 'u') {
                unsigned long code = strtoul(text.substr(at, 4).c_str(), nullptr, 16);
                result += code < 0x80 ? std::string(1, (char)code) : "<" + text.substr(at, 4) + ">";
                at += 4;
            } else if (escape == '"' || escape == '\\') {
                result += escape;
            } else {
                throw std::runtime_error("unknown escape");
            }
        }
        at++;
        return result;
    }
    static Json parse_value(const std::string &text, size_t &at) {
        Json value;
        skip_space(text, at);
        char first = text.at(at);
        if (first == '{' || first == '[') {
            value.kind = first == '{' ? OBJECT : ARRAY;
            char close = first == '{' ? '}' : ']';
            at++;
            skip_space(text, at);
            for (bool more = text.at(at) != close; more;) {
                std::string key;
                skip_space(text, at);
                if (first == '{') {
                    key = parse_string(text, at);
                    expect(text, at, ":");
                }
                Json item = parse_value(text, at);
                if (first == '[')
                    value.items.push_back(item);
                else if (!value.members.emplace(key, item).second)
                    throw std::runtime_error("key twice: " + key);
                skip_space(text, at);
                more = text.at(at) == ',';
                at += more;
            }
            expect(text, at, std::string(1, close));
        } else if (first == '"') {
            value.kind = STRING;
            value.text = parse_string(text, at);
        } else if (first == 't' || first == 'f') {
            value.kind = BOOLEAN;
            value.number = first == 't';
            expect(text, at, first == 't' ? "true" : "false");
        } else if (first == 'n') {
            expect(text, at, "null");
        } else {
            size_t used = 0;
            if (first != '-' && !isdigit((unsigned char)first))
                throw std::runtime_error("no value at " + text.substr(at, 20));
            value.kind = NUMBER;
            value.number = std::stod(text.substr(at), &used);
            at += used;
        }
        return value;
    }
};

#endif
