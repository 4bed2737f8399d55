package main

const docs = "../../docs"
