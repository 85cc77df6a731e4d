"""GLUE and two tasks of SuperGLUE as their own sites publish them: folders of tab-separated and JSON files.

    glue_data/CoLA/{train,dev,test}.tsv                         superglue/BoolQ/{train,val,test}.jsonl
    glue_data/MNLI/{train,dev_matched,dev_mismatched,...}.tsv   superglue/WiC/{train,val,test}.jsonl
    glue_data/diagnostic/diagnostic.tsv

The labels of the test sets are hidden, so the development set is the test set here (as in every published dev figure),
and the validation set is a tenth of the training set. Labels go by name: entailment, neutral, contradiction.

- The TSV files are not quoted: a quotation mark is a character, and a text may begin with one that never ends.
- A few training rows of older downloads are torn by a line break; they are left out and counted.
- MNLI has two development sets and two test sets, of the training texts' genres (matched) and of others (mismatched);
  AX, the diagnostic set, is answered by a model of MNLI.
- WiC asks whether a word means the same in two sentences. It stands before the first sentence and between stars in
  both, so that a model of texts alone can read where it is ("pool: the * pool * was open").

References: Wang et al. 2018, GLUE, arXiv 1804.07461; Wang et al. 2019, SuperGLUE, arXiv 1905.00537; each task's below.
"""

from typing import Any

from eval.task import Task

_NLI = ("entailment", "not_entailment")
_TERMS = "see gluebenchmark.com"


def _glue(name: str, folder: str, title: str, reference: str, sizes: tuple[int, ...], **changes: Any) -> Task:
    settings: dict[str, Any] = {
        "text_fields": ("sentence1", "sentence2"),
        "label_field": "label",
        "train_file": f"{folder}/train.tsv",
        "test_file": f"{folder}/dev.tsv",
        "test_name": "dev",
        "hidden": ((folder, f"{folder}/test.tsv"),),
        "metrics": ("accuracy",),
        "benchmark": "GLUE",
        "licence": _TERMS,
    }
    return Task(name=name, title=title, reference=reference, sizes=sizes, **settings | changes)


def _superglue(name: str, folder: str, title: str, reference: str, sizes: tuple[int, ...], **changes: Any) -> Task:
    settings: dict[str, Any] = {
        "labels": ("no", "yes"),
        "label_values": ("false", "true"),
        "label_field": "label",
        "train_file": f"{folder}/train.jsonl",
        "test_file": f"{folder}/val.jsonl",
        "test_name": "val",
        "hidden": ((folder, f"{folder}/test.jsonl"),),
        "hidden_reader": "jsonl",
        "index_field": "idx",
        "reader": "jsonl",
        "metrics": ("accuracy",),
        "benchmark": "SuperGLUE",
    }
    return Task(name=name, title=title, reference=reference, sizes=sizes, **settings | changes)


GLUE: tuple[Task, ...] = (
    _glue(
        "cola",
        "CoLA",
        "Grammatical sentences, CoLA",
        "Warstadt, Singh and Bowman 2019, Neural Network Acceptability Judgments, TACL",
        (8551, 1043, 1063),
        labels=("unacceptable", "acceptable"),
        label_values=("0", "1"),
        text_fields=("sentence",),
        reader="tsv-bare",
        columns=("source", "label", "mark", "sentence"),
        metrics=("matthews", "accuracy"),
        main_metric="matthews",
    ),
    _glue(
        "sst-2",
        "SST-2",
        "Sentiment of film reviews, SST-2",
        "Socher et al. 2013, Recursive Deep Models for Semantic Compositionality, EMNLP",
        (67349, 872, 1821),
        labels=("negative", "positive"),
        label_values=("0", "1"),
        text_fields=("sentence",),
    ),
    _glue(
        "mrpc",
        "MRPC",
        "Paraphrases in the news, MRPC",
        "Dolan and Brockett 2005, Automatically Constructing a Corpus of Sentential Paraphrases, IWP",
        (3668, 408, 1725),
        labels=("different", "paraphrase"),
        label_values=("0", "1"),
        text_fields=("#1 String", "#2 String"),
        label_field="Quality",
        reader="mrpc",
        hidden_reader="mrpc",
        metrics=("f1", "accuracy"),
        main_metric="f1",
    ),
    _glue(
        "sts-b",
        "STS-B",
        "Likeness of two sentences from 0 to 5, STS-B",
        "Cer et al. 2017, SemEval-2017 Task 1, Semantic Textual Similarity",
        (5749, 1500, 1379),
        labels=(),
        kind="regression",
        label_field="score",
        label_rule="number",
        label_range=(0.0, 5.0),
        metrics=("pearson", "spearman", "mean_absolute_error"),
        main_metric="pearson",
    ),
    _glue(
        "qqp",
        "QQP",
        "Questions that ask the same, QQP",
        "Iyer, Dandekar and Csernai 2017, First Quora Dataset Release: Question Pairs",
        (363846, 40430, 390965),
        labels=("different", "duplicate"),
        label_values=("0", "1"),
        text_fields=("question1", "question2"),
        label_field="is_duplicate",
        index_field="id",
        metrics=("f1", "accuracy"),
        main_metric="f1",
    ),
    _glue(
        "mnli",
        "MNLI",
        "Entailment, contradiction or neither in many genres, MNLI",
        "Williams, Nangia and Bowman 2018, A Broad-Coverage Challenge Corpus, NAACL",
        (392702, 9815, 9832, 9796, 9847),
        labels=("entailment", "neutral", "contradiction"),
        label_field="gold_label",
        no_label=("-",),
        test_file="MNLI/dev_matched.tsv",
        test_name="matched",
        extra_tests=(("mismatched", "MNLI/dev_mismatched.tsv"),),
        hidden=(
            ("MNLI-m", "MNLI/test_matched.tsv"),
            ("MNLI-mm", "MNLI/test_mismatched.tsv"),
            ("AX", "diagnostic/diagnostic.tsv"),
        ),
    ),
    _glue(
        "qnli",
        "QNLI",
        "Sentences that hold the answer to a question, QNLI",
        "Wang et al. 2018, GLUE, from Rajpurkar et al. 2016, SQuAD",
        (104743, 5463, 5463),
        labels=_NLI,
        text_fields=("question", "sentence"),
    ),
    _glue(
        "rte",
        "RTE",
        "Entailment, RTE",
        "Dagan et al. 2006, Bar Haim et al. 2006, Giampiccolo et al. 2007, Bentivogli et al. 2009",
        (2490, 277, 3000),
        labels=_NLI,
    ),
    _glue(
        "wnli",
        "WNLI",
        "What a pronoun stands for, WNLI",
        "Levesque, Davis and Morgenstern 2011, The Winograd Schema Challenge",
        (635, 71, 146),
        labels=("not_entailment", "entailment"),
        label_values=("0", "1"),
    ),
)

SUPERGLUE: tuple[Task, ...] = (
    _superglue(
        "boolq",
        "BoolQ",
        "Yes-or-no questions on a passage, BoolQ",
        "Clark et al. 2019, BoolQ, NAACL",
        (9427, 3270, 3245),
        text_fields=("question", "passage"),
        licence="CC BY-SA 3.0",
    ),
    _superglue(
        "wic",
        "WiC",
        "One sense of a word or two, WiC",
        "Pilehvar and Camacho-Collados 2019, WiC, NAACL",
        (5428, 638, 1400),
        labels=("different", "same"),
        text_fields=("sentence1", "sentence2"),
        spans=(("start1", "end1"), ("start2", "end2")),
        mark_field="word",
        licence="CC BY-NC 4.0",
    ),
)
